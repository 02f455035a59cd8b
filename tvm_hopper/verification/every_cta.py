"""Check every CTA of every launch by its indices, simulated or not."""

from __future__ import annotations

import numpy as np

from tvm_hopper.sim import Finding
from tvm_hopper.sim.coverage import check_every_cta, check_outputs
from tvm_hopper.verification.case import Case


def check_indices(case: Case, whole: bool, budget_s: float) -> tuple[list[Finding], list[str]]:
    """Check bounds, alignment, overlap and coverage of all CTAs.

    Parameters
    ----------
    whole : bool
        Whether the CTAs that are simulated run all turns of their loops.
    budget_s : float
        Seconds for each launch.

    Returns
    -------
    tuple
        Findings, and a line for each launch that says what was proven.
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
