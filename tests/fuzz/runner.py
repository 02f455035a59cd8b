"""Runs many cases in processes with a deadline each, and shrinks what failed.

cases -> workers (one Outcome each) -> groups of one cause -> shrunk scripts in fuzz_out/
"""

import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.worker_pool import WorkerError, run_tasks

from .case import Case, Outcome
from .draw import Draw, fresh
from .judge import FAULTS, judge
from .reproducer import write
from .shrink import Verdict, shrink, size, verdict

CASE_SECONDS = 120.0  # of one case, the start of its process included
SHRINK_SECONDS = 60.0
RECYCLE = 400  # cases after which a worker is replaced: TVM keeps what it compiled
SHRUNK_OF_GROUP = {"wrong": 4}  # scripts written for one group of faults, else 1


@dataclass(frozen=True)
class Task:
    """One case to run; `made` are its decisions when it is no fresh one; `like` asks to shrink.

    `assemble`: by the CUDA compiler too, whether the case asks for it or not.
    """

    family: str
    seed: int
    number: int
    made: tuple[int, ...] | None = None
    like: Verdict | None = None
    folder: str = ""
    assemble: bool = False

    @property
    def id(self) -> str:
        """The name that `--replay` takes."""
        return f"{self.family}:{self.seed}:{self.number}"


@dataclass(frozen=True)
class Result:
    """What a worker answers."""

    outcome: Outcome
    made: tuple[int, ...]
    size: int
    served: int  # cases that the worker has run
    script: str = ""


_served = 0


def generate(task: Task) -> tuple[Case, tuple[int, ...]]:
    """Make the case of a task; return it with its decisions."""
    is_fresh = task.made is None
    draw = fresh(task.family, task.seed, task.number) if is_fresh else Draw(task.made or ())
    case = _maker(task)(draw)
    return case, tuple(draw.made)


def _maker(task: Task) -> Callable[[Draw], Case]:
    """Return what makes the cases of a task out of decisions."""
    from .families import FAMILIES

    make = FAMILIES[task.family]
    if not task.assemble:
        return make

    def assembled(draw: Draw) -> Case:
        case = make(draw)
        return replace(case, cubin=case.cubin or bool(case.kernels and case.build))

    return assembled


def serve(task: Task) -> Result:
    """Run, or shrink, one case: what a worker process does."""
    global _served
    if not _served and os.environ.get("TVM_HOPPER_FUZZ_QUIET"):
        null = os.open(os.devnull, os.O_WRONLY)  # LLVM and TVM print warnings
        os.dup2(null, 1)
        os.dup2(null, 2)
    _served += 1
    case, made = generate(task)
    if task.like is None:
        return Result(judge(case), made, size(case), _served)
    outcome, made, length, path = _shrunk(task, judge)
    return Result(outcome, made, length, RECYCLE, path)


def _shrunk(
    task: Task, run: Callable[[Case], Outcome]
) -> tuple[Outcome, tuple[int, ...], int, str]:
    """Shrink one case, write its script; return outcome, decisions, size and path."""
    make = _maker(task)
    _, made = generate(task)
    outcomes: dict[str, Outcome] = {}

    def is_same(case: Case) -> bool:
        outcome = outcomes[repr(case)] = run(case)
        return verdict(outcome.kind, outcome.phase, outcome.text) == task.like

    best = shrink(made, make, is_same)
    case = make(Draw(best))
    outcome = outcomes.get(repr(case)) or run(case)
    path = write(Path(task.folder), f"{task.seed}_{task.number}", task.family, best, case, outcome)
    return outcome, tuple(best), size(case), str(path)


@dataclass
class Group:
    """Faults of one cause, as far as class, phase and message tell."""

    family: str
    like: Verdict
    tasks: list[tuple[int, Task, Outcome]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)


@dataclass
class Summary:
    """Counts of a run, and its faults in groups."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # (class, family)
    groups: dict[tuple[str, Verdict], Group] = field(default_factory=dict)
    seconds: float = 0.0
    slowest: tuple[float, str] = (0.0, "")

    def add(self, task: Task, result: Result) -> None:
        """Count one result."""
        out = result.outcome
        self.counts[out.kind, task.family] += 1
        self.slowest = max(self.slowest, (out.seconds, task.id))
        if out.kind in FAULTS:
            like = verdict(out.kind, out.phase, out.text)
            group = self.groups.setdefault((task.family, like), Group(task.family, like))
            group.tasks.append((result.size, task, out))

    @property
    def total(self) -> int:
        """Cases that were run."""
        return sum(self.counts.values())

    def of(self, kind: str) -> int:
        """Return the number of cases of one class."""
        return sum(n for (k, _), n in self.counts.items() if k == kind)

    @property
    def faults(self) -> int:
        """Cases that a fault shows in."""
        return sum(map(self.of, FAULTS))


def plan(
    seed: int,
    families: Sequence[str],
    cases: int | None,
    first: int = 0,
    assemble: bool = False,
) -> Iterator[Task]:
    """Yield the tasks of a run: families mixed by their shares, numbered each from `first`."""
    from .families import SHARES

    turn: list[tuple[float, str]] = []
    for family in families:
        share = SHARES[family]
        turn += [((i + 0.5) / share, family) for i in range(share)]
    numbers = dict.fromkeys(families, first)
    order = itertools.cycle(family for _, family in sorted(turn))
    for family in order if cases is None else itertools.islice(order, cases):
        yield Task(family, seed, numbers[family], assemble=assemble)
        numbers[family] += 1


def answer(task: Task, result: Any) -> Result:
    """Return a worker's answer, or what its silence means."""
    if not isinstance(result, WorkerError):
        return result
    is_hang = "no result" in str(result)
    outcome = Outcome("hang" if is_hang else "crash", "process", str(result))
    case, made = generate(task)
    return Result(outcome, made, size(case), 0)


def run(
    tasks: Iterator[Task],
    jobs: int,
    until: float,
    tell: Callable[[Summary], None] = lambda summary: None,
    case_seconds: float = CASE_SECONDS,
) -> Summary:
    """Run tasks in worker processes until they or the time end."""
    _set_up()
    start, summary = time.monotonic(), Summary()
    for task, result in run_tasks(
        serve, tasks, jobs, case_seconds, until, lambda r: r.served >= RECYCLE
    ):
        summary.add(task, answer(task, result))
        summary.seconds = time.monotonic() - start
        tell(summary)
    return summary


def shrink_groups(
    summary: Summary, folder: Path, jobs: int, seconds: float, tell: Callable[[str], None] = print
) -> None:
    """Write a shrunk script for each group of faults, the gravest classes first."""
    _set_up()
    grave = {kind: place for place, kind in enumerate(FAULTS)}
    groups = sorted(summary.groups.values(), key=lambda g: (-grave[g.like[0]], len(g.tasks)))
    in_process: list[Task] = []
    alone: list[Task] = []
    owners: dict[Task, Group] = {}
    for group in groups:
        wanted = SHRUNK_OF_GROUP.get(group.like[0], 1)
        for _, task, _ in sorted(group.tasks, key=lambda x: (x[0], x[1].id))[:wanted]:
            asked = replace(task, like=group.like, folder=str(folder))
            owners[asked] = group
            (alone if group.like[1] == "process" else in_process).append(asked)
    until = time.monotonic() + seconds
    limit = SHRINK_SECONDS + CASE_SECONDS
    for task, result in run_tasks(serve, in_process, jobs, limit, until, lambda r: True):
        if isinstance(result, WorkerError):
            tell(f"{task.id}: not shrunk, {result}")
            continue
        owners[task].scripts.append(result.script)
        tell(f"{result.outcome.kind:16} {task.id:22} {result.script}")
    for task in alone:
        if time.monotonic() < until:
            *_, path = _shrunk(task, _in_a_process_of_its_own)
            owners[task].scripts.append(path)
            tell(f"{task.like[0] if task.like else '':16} {task.id:22} {path}")


def judge_case(case: Case) -> Result:
    """Judge one case in a worker."""
    return Result(judge(case), (), size(case), RECYCLE)


def _in_a_process_of_its_own(case: Case) -> Outcome:
    """Judge a case that may kill or hang its process."""
    for _, result in run_tasks(judge_case, [case], 1, CASE_SECONDS / 6, time.monotonic() + 1):
        if isinstance(result, WorkerError):
            kind = "hang" if "no result" in str(result) else "crash"
            return Outcome(kind, "process", str(result))
        return result.outcome
    raise RuntimeError("run_tasks: found no answer; need one for each task")


def _set_up() -> None:
    """Set what the worker processes inherit: one thread each, and no chatter of LLVM."""
    for name in ("TVM_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"
    if "pytest" not in sys.modules:
        os.environ["TVM_HOPPER_FUZZ_QUIET"] = "1"
