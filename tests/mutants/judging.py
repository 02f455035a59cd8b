"""Let every judge look at one program, from cheap to thorough; the first that objects ends it."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from tvm_hopper.errors import HopperError
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.sim import RunOptions
from tvm_hopper.sim.findings import Finding
from tvm_hopper.sim.kernel_code import launch_findings
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.protocol.check import explore_skeleton
from tvm_hopper.simulation import Program
from tvm_hopper.static_check import check_sync
from tvm_hopper.verification.launches import bound_launches, run_launches

from .kernels import Subject

POLICIES = (
    ("eager", 0),
    ("on_wait", 0),
    ("lifo", 0),
    ("random", 1),
    ("random", 2),
    ("starve:consumer", 0),
    ("starve:producer", 0),
)
JUDGES = ("launch", "static check", "exploration", "simulator", "values")
MAX_STATES = 20_000
BUDGET_S = 3.0  # of one schedule


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the judges say of one program.

    Attributes
    ----------
    judge : str
        The first that objected, one of JUDGES; "" if none did; "crash" where a judge ended with an
        exception that is not its answer.
    rules : tuple of str
        What it objected to, or the exception.
    severity : str
        Of the worst finding; "clean" if there is none.
    """

    judge: str
    rules: tuple[str, ...] = ()
    severity: str = "clean"

    @property
    def reported(self) -> bool:
        """Whether some judge objected."""
        return self.judge not in ("", "crash")


class _Crash(Exception):
    """A judge ended with an exception that is not its answer."""


def judge(subject: Subject, program: Program, want: dict[str, np.ndarray]) -> Outcome:
    """Let every judge look at a program with the subject's inputs; `want`: the right outputs."""
    try:
        return _judge(subject, program, want)
    except _Crash as crash:
        return Outcome("crash", (str(crash),), "crash")


def _judge(subject: Subject, program: Program, want: dict[str, np.ndarray]) -> Outcome:
    func = program.kernels[subject.kernel]
    values, missing = complete(program.arguments, subject.inputs)
    try:
        launches = bound_launches(program, values, DEFAULT_NUM_SMS)
    except HopperError as error:  # what the driver or the host's own checks refuse
        return Outcome("launch", (type(error).__name__,), "error")
    except Exception as error:
        raise _Crash(f"launch: {error!r}") from error
    found = [f for launch in launches for f in _ask("launch", launch_findings, launch)]
    if outcome := _objection("launch", found):
        return outcome
    if outcome := _objection("static check", _ask("static check", _static, func, program.host)):
        return outcome
    if outcome := _objection("exploration", _ask("exploration", _explored, func, program.host)):
        return outcome
    for policy, seed in POLICIES:
        result = _ask(
            f"simulator, {policy}({seed})",
            *(run_launches, launches, values, missing, [None] * len(launches)),
            RunOptions(policy, seed, budget_s=BUDGET_S),
        )
        if outcome := _objection("simulator", result.findings):
            return outcome
        if wrong := differing(result.outputs, want):
            return Outcome("values", tuple(wrong), "error")
    return Outcome("")


def _ask(what: str, function: Any, *args: Any) -> Any:
    try:
        if function is launch_findings:
            return launch_findings(args[0].func, args[0].setup)
        return function(*args)
    except Exception as error:
        raise _Crash(f"{what}: {error!r}") from error


def _static(func: Any, host: Any) -> list[Any]:
    """Return what the static check finds; what it cannot follow is left to the simulator."""
    return [f for f in check_sync(func, host) if f.rule != "INCOMPLETE"]


def _explored(func: Any, host: Any) -> list[Finding]:
    return list(explore_skeleton(func, host, MAX_STATES).findings)


def _objection(judge_name: str, found: Iterable[Any]) -> Outcome | None:
    worst = max((SEVERITIES.index(severity_of(f)) for f in found), default=0)
    if not worst:
        return None
    return Outcome(judge_name, tuple(sorted({f.rule for f in found})), SEVERITIES[worst])


SEVERITIES = ("clean", "review", "incomplete", "error")


def severity_of(found: Any) -> str:
    """Return a finding's severity."""
    return str(getattr(found, "severity", "error"))


def right_outputs(subject: Subject) -> dict[str, np.ndarray]:
    """Run the unchanged kernel once.

    Raises
    ------
    AssertionError
        It is not clean: nothing can be learned from its mutants.
    """
    values, missing = complete(subject.program.arguments, subject.inputs)
    launches = bound_launches(subject.program, values, DEFAULT_NUM_SMS)
    result = run_launches(launches, values, missing, [None] * len(launches))
    assert not result.findings, f"{subject.name}: {result.findings}"
    return {name: result.outputs[name] for name in missing}


def differing(outputs: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> list[str]:
    """Name the outputs that differ, bit for bit."""
    return [n for n, x in want.items() if outputs[n].tobytes() != x.tobytes()]
