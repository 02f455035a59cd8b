"""Check every CTA of every launch: its indices, and whether it may wait for CTAs not yet resident.

A device starts CTAs in the order of launch, as many as it can hold (PTX promises no order; every
device so far keeps this one). The runs in which all CTAs
are resident cover CTAs that communicate, if these are launched close enough together: with m CTAs
at once, the first unfinished one and all that are launched less than m after it have started. CTAs
that communicate over a longer distance must progress with the earlier ones alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tvm_hopper.sim import Finding, RunOptions
from tvm_hopper.sim.coverage import check_every_cta, check_outputs
from tvm_hopper.sim.cta_selection import span_of
from tvm_hopper.sim.findings import finding
from tvm_hopper.sim.kernel_code import compiled
from tvm_hopper.sim.launch.limits import resident_ctas
from tvm_hopper.verification.case import Case
from tvm_hopper.verification.launches import run_launches


def check_indices(case: Case, whole: bool, budget_s: float) -> tuple[list[Finding], list[str]]:
    """Check bounds, alignment, overlap and coverage of all CTAs.

    - `whole`: whether the CTAs that are simulated run all iterations of their loops.
    - `budget_s`: seconds for each launch.
    - returns: findings, and one line for each launch that states the result of the proof.
    """
    launches, choices = case.launches, case.choices
    arrays = {name: value for name, value in case.values.items() if isinstance(value, np.ndarray)}
    for launch in launches:
        for name, workspace in launch.workspaces.items():
            if name not in arrays:
                arrays[name] = workspace.array()
    coverages = [
        check_every_cta(launch.func, launch.setup, arrays, whole and choice.everything, budget_s)
        for launch, choice in zip(launches, choices, strict=True)
    ]
    all_run = whole and all(choice.everything for choice in choices)
    holes, covered = check_outputs(coverages, case.outputs, arrays, all_run)
    texts = [
        f"{choice.kernel}: {coverage.text}"
        for choice, coverage in zip(choices, coverages, strict=True)
    ]
    if covered:
        texts.append(f"every element of {', '.join(covered)} is stored to")
    return [*(one for coverage in coverages for one in coverage.findings), *holes], texts


POLICY = "in_turn"


def check_residency(case: Case, left: Callable[[], float]) -> list[Finding]:
    """Run CTAs one after another if the device does not hold those that communicate.

    - `left`: seconds that are left.
    - returns: DEADLOCK or INCOMPLETE; empty if all are there together, or do not need it.
    """
    far, arch, num_sms = None, case.program.arch, case.num_sms
    for launch, choice in zip(case.launches, case.choices, strict=True):
        resident = resident_ctas(launch.setup, compiled(launch.func).shared, arch, num_sms)
        span = choice.span
        if span is None:  # not needed for so few CTAs
            span = span_of(launch.func, launch.setup) if choice.total > resident else 1
        if span > resident:
            far = (
                f"{choice.kernel}: CTAs that communicate are launched up to {span} "
                f"apart, and a device of {num_sms} SMs holds {resident} at once"
            )
    if far is None:
        return []
    options = RunOptions(POLICY, budget_s=max(left(), 0.1))
    result = run_launches(case.launches, case.values, case.outputs, case.chosen, options)
    stuck = [one for one in result.findings if one.rule == "DEADLOCK"]
    if stuck:
        text = f"{far}; one after another, in the order of launch, they do not end: "
        hint = "let CTAs wait for those alone that are launched before them"
        return [finding("DEADLOCK", text + stuck[0].message, hint=hint, policy=POLICY)]
    if result.stopped:
        return [
            finding(
                "INCOMPLETE",
                f"{far}; whether each gets on with those before it alone was "
                "not seen: the run did not end",
            )
        ]
    return []
