"""Verify in the simulator that the best configuration computes the right result.

    check = Simulated(seconds=60)
    check(problem, config)      Verdict("equal", "bit for bit ..")

A kernel that is fast and wrong must not enter a database. Where a GPU compares the last few
(`finals.py`) it checks them, too; this is for all others. `tune(check=...)` takes any callable
like it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm_hopper.errors import HopperError, cannot_tune
from tvm_hopper.simulation import verify

from .configurations import Configuration
from .problems import Problem

EQUAL, WRONG, UNCHECKED = "equal", "wrong", "unchecked"
RUNS = (("on_wait", 0),)  # loads land as late as they may
DETAIL = 300  # characters of a reason


@dataclass(frozen=True)
class Verdict:
    """The result of a check: "equal", "wrong" or "unchecked", with who checked and the reason."""

    verdict: str
    by: str
    detail: str = ""


Check = Callable[[Problem, Configuration], Verdict]


@dataclass(frozen=True)
class Simulated:
    """Run one schedule of the roles on chosen thread blocks, and compare values.

    - `seconds`: after which a kernel that is too large is left unchecked.
    """

    seconds: float = 60.0

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise cannot_tune("Simulated", f"seconds={self.seconds}", "a number above 0")

    def __call__(self, problem: Problem, config: Configuration) -> Verdict:
        """Judge one configuration of a problem."""
        try:
            report = verify(
                problem.schedule(config),
                target=problem.target,
                against=problem.mod,
                runs=RUNS,
                max_ctas=1,
                budget_s=self.seconds,
                progress=False,
            )
        except HopperError as error:
            return Verdict(WRONG, "simulator", str(error)[:DETAIL])
        if report.verdict == "error":
            found = "; ".join(f"{x.rule}: {x.message}" for x in report.findings)
            return Verdict(WRONG, "simulator", found[:DETAIL])
        if report.verdict == "incomplete" and not report.values.checked:
            return Verdict(UNCHECKED, "simulator", report.values.text[:DETAIL])
        return Verdict(EQUAL, "simulator", report.values.text[:DETAIL])


def no_check(problem: Problem, config: Configuration) -> Verdict:
    """Let every winner pass; records say that it was not checked."""
    return Verdict(UNCHECKED, "nothing")


def run_check(check: Check, problem: Problem, config: Configuration) -> Verdict:
    """Return what a check says.

    - raises TuningError: it says something else than a verdict.
    """
    verdict = check(problem, config)
    if isinstance(verdict, Verdict) and verdict.verdict in (EQUAL, WRONG, UNCHECKED):
        return verdict
    need = f'a checking.Verdict of "{EQUAL}", "{WRONG}" or "{UNCHECKED}"'
    raise cannot_tune("check", f"{verdict!r}"[:DETAIL], need)
