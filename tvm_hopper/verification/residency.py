"""Find CTAs that wait for others that may not be resident yet.

A device starts CTAs in the order of launch, as many as it can hold (PTX promises no order; every
device so far keeps this one). Those that hear of each other are all there, and the runs in which
every CTA is there speak for them, if they are launched close enough together: with m CTAs at once,
the first unfinished one and all that are launched less than m after it have started. Where they
are further apart, each has to get on with what was launched before it alone.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm_hopper.sim import Finding, RunOptions
from tvm_hopper.sim.cta_selection import span_of
from tvm_hopper.sim.findings import finding
from tvm_hopper.sim.kernel_code import compiled
from tvm_hopper.sim.launch.limits import resident_ctas
from tvm_hopper.verification.case import Case
from tvm_hopper.verification.launches import run_launches

POLICY = "in_turn"


def check_residency(case: Case, left: Callable[[], float]) -> list[Finding]:
    """Run CTAs one after another if the device does not hold those that hear of each other.

    Parameters
    ----------
    left : callable
        Seconds that are left.

    Returns
    -------
    list of Finding
        DEADLOCK or INCOMPLETE; empty if all are there together, or do not need it.
    """
    far, arch, num_sms = None, case.program.arch, case.num_sms
    for launch, choice in zip(case.launches, case.choices, strict=True):
        room = resident_ctas(launch.setup, compiled(launch.func).shared, arch, num_sms)
        span = choice.span
        if span is None:  # not needed for so few CTAs
            span = span_of(launch.func, launch.setup) if choice.total > room else 1
        if span > room:
            far = (
                f"{choice.kernel}: CTAs that hear of each other are launched up to {span} "
                f"apart, and a device of {num_sms} SMs holds {room} at once"
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
