"""Final round of a search: remeasure the fastest against the default, and verify them.

    finals = Finals(database, append, Bench(builder, runner, target), check, is_users=False)
    finals.hold(problems)

Times of a search are of single calls, at different times and on different GPUs. A configuration
replaces the package's choice only if both were measured alternately on one GPU. It must be faster
back to back at full load, by more than another day or other tensors change, and no slower in single
calls. If no runner compares them, the measured times decide. If comparing failed, the package's
choice stays until the next run tries it.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tvm import tirx
from tvm.s_tir import dlight as dl, meta_schedule as ms
from tvm.target import Target

from tvm_hopper import ir, schedule as hs

from .checking import WRONG, Check, run_check
from .configurations import as_text
from .database import RECORDS, Database, Trial
from .matmul_problems import MatmulProblem
from .measurement import Contested
from .problems import Problem
from .schedulers import Schedule, scheduled_here

FINALISTS = 6  # next to the package's own choice
OF_A_SHAPE = 2  # of these: what is fast alone and slow at full load is so with all its relatives
# Smallest gain that counts, timed back to back. 47 winners were timed again on other tensors: gains
# were at most 0.019 smaller (one of 1.158 by 0.071), so 1.01 means at least 0.99. Two winners were
# slower then; they had won by 1.003 and 1.005 and were not faster in single calls.
LEAST_GAIN = 1.01
LEAST_SINGLE = 1.0  # of the speed of the package's choice, in single calls
MANY = 1.96  # standard deviations: certain to 95%
BY_TIME = "ranked by their times in the search"

Append = Callable[[dict[str, Any]], None]
Result = Callable[[], Contested | str]


@dataclass(frozen=True)
class Gain:
    """Speed-up of one over another: the median over rounds and its confidence interval."""

    middle: float
    low: float
    high: float


def gain_of(first: Sequence[float], other: Sequence[float]) -> Gain:
    """Return how much faster `other` is, from alternating measurements."""
    ratios = sorted(a / b for a, b in zip(first, other, strict=True))
    count = len(ratios)
    off = MANY * math.sqrt(count) / 2  # of the rank of a median, by the binomial distribution
    low = ratios[max(0, math.floor(count / 2 - off))]
    high = ratios[min(count - 1, math.ceil(count / 2 + off))]
    return Gain(median(ratios), low, high)


def decide(
    sustained: Sequence[Sequence[float]], single: Sequence[Sequence[float]]
) -> tuple[int, Gain]:
    """Return which contender wins, and its gain: the first one unless another is surely faster.

    - `sustained`, `single`: times of each contender, round by round; none of those that are out.
    """
    best, most = 0, Gain(1.0, 1.0, 1.0)
    for number in range(1, len(sustained)):
        if not sustained[number] or not sustained[0]:
            continue
        gain = gain_of(sustained[0], sustained[number])
        alone = gain_of(single[0], single[number])
        if gain.low > LEAST_GAIN and alone.middle >= LEAST_SINGLE and gain.middle > most.middle:
            best, most = number, gain
    return best, most


@dataclass(frozen=True)
class Bench:
    """What builds and measures, as of `tune`; None where there is nothing to compare."""

    builder: Any
    runner: Any
    target: Target


class Finals:
    """Compares and checks the best trials of problems, and writes what came of it.

    - `database`: with the trials.
    - `append`: writes a line into the log, and into the database.
    - `bench`: where finalists are built and compared.
    - `check`: judges a winner that was not compared with a reference.
    - `is_users`: whether `check` is the user's: then it checks every winner.
    - `schedule`: schedules configurations, see `schedulers.scheduled_here`.
    """

    def __init__(
        self,
        database: Database,
        append: Append,
        bench: Bench,
        check: Check,
        is_users: bool,
        schedule: Schedule = scheduled_here,
    ) -> None:
        self._database, self._append = database, append
        self._bench = bench
        self._check, self._is_users = check, is_users
        self._schedule = schedule

    def hold(self, problems: Sequence[Problem]) -> None:
        """Find a checked winner of each problem that has a trial which ran."""
        left = [x for x in problems if finalists(self._database, x)]
        while left:  # repeated for problems whose winner is wrong
            new = [x for x in left if is_open(self._database, x)]
            for problem, result in zip(new, self._begin(new), strict=True):
                self._settle(problem, result() if result is not None else BY_TIME)
            left = [x for x in left if not self._is_checked(x)]

    def _begin(self, problems: Sequence[Problem]) -> list[Result | None]:
        """Let finalists be built, all at once, and compared; None where no runner does that."""
        if getattr(self._bench.runner, "contest", None) is None or self._bench.builder is None:
            return [None] * len(problems)
        mods: list[list[Any]] = []
        for problem in problems:
            requests = [(x.config, False) for x in finalists(self._database, problem)]
            contenders = [
                problem.schedule(config).mod if made is None else made.mod  # it says why not
                for made, (config, _) in zip(
                    self._schedule(problem, requests), requests, strict=True
                )
            ]
            reference = as_tvm_has_it(problem)
            mods.append(contenders if reference is None else [*contenders, reference])
        inputs = [ms.builder.BuilderInput(mod, self._bench.target, None) for x in mods for mod in x]
        built = iter(list(self._bench.builder.build(inputs)) if inputs else [])
        return [
            self._compare(problem, [next(built) for _ in x])
            for problem, x in zip(problems, mods, strict=True)
        ]

    def _compare(self, problem: Problem, built: list[Any]) -> Result:
        count = len(finalists(self._database, problem))
        paths = [None if x.artifact_path is None else str(x.artifact_path) for x in built]
        errors = [str(x.error_msg) for x in built[:count] if x.artifact_path is None]
        contest = None
        if not errors:
            contest = self._bench.runner.contest(
                paths[:count],
                reference=paths[count] if len(paths) > count else None,
                library=_as_library(problem),
            )

        def result() -> Contested | str:
            outcome: Contested | str = f"not built: {errors[0]}" if contest is None else contest()
            for path in filter(None, paths):
                shutil.rmtree(Path(path).parent, ignore_errors=True)
            return outcome

        return result

    def _settle(self, problem: Problem, result: Contested | str) -> None:
        """Write who won, and which finalists are wrong."""
        trials = finalists(self._database, problem)
        row: dict[str, Any] = {
            "is": "final",
            "workload": problem.key,
            "finalists": [x.text for x in trials],
        }
        if isinstance(result, str):
            best = min(trials, key=lambda x: x.seconds or math.inf)
            if result != BY_TIME:  # one of them may hang at full load: the choice is the safe one
                best, row = trials[0], {**row, "is_broken": True}
            self._append({**row, "winner": best.text, "gain": None, "why": result[:300]})
            return
        count = len(trials)
        for trial, (verdict, why) in zip(trials, result.verdicts, strict=True):
            if verdict == WRONG:
                self._say(problem, trial, verdict, result.worker, why)
        sound = [i for i in range(count) if result.verdicts[i][0] != WRONG]
        if not sound:
            self._append({**row, "winner": trials[0].text, "gain": None, "why": "all are wrong"})
            return
        place, gain = decide(
            [result.sustained[i] for i in sound], [result.single[i] for i in sound]
        )
        winner = trials[sound[place]]
        verdict, why = result.verdicts[sound[place]]
        library = result.sustained[count] if len(result.sustained) > count else ()
        self._append(
            {
                **row,
                "winner": winner.text,
                "gain": round(gain.middle, 4),
                "certain": [round(gain.low, 4), round(gain.high, 4)],
                "sustained_us": [_us(result.sustained[i]) for i in range(count)],
                "single_us": [_us(result.single[i]) for i in range(count)],
                "library": result.library,
                "library_us": _us(library),
                "worker": result.worker,
                "is_fake": result.is_fake,
                "at": round(time.time(), 3),
            }
        )
        if verdict == "equal" and not self._is_users:
            self._say(problem, winner, verdict, result.worker, why)

    def _is_checked(self, problem: Problem) -> bool:
        """Tell whether the winner of a problem is right, or none is left; check it first."""
        if not finalists(self._database, problem):
            return True
        trial = self._database.decided(problem.key)
        assert trial is not None
        if not self._database.verdict(problem.key, trial):
            verdict = run_check(self._check, problem, trial.config)
            self._say(problem, trial, verdict.verdict, verdict.by, verdict.detail)
        return self._database.verdict(problem.key, trial) != WRONG

    def _say(self, problem: Problem, trial: Trial, verdict: str, by: str, why: str) -> None:
        self._append(
            {
                "is": "check",
                "workload": problem.key,
                "configuration": trial.text,
                "verdict": verdict,
                "by": by,
                "detail": why[:300],
                "record": None if verdict == WRONG else as_record(problem, trial),
            }
        )


def finalists(database: Database, problem: Problem) -> list[Trial]:
    """Return who is compared: the package's choice first, if it ran, then the fastest ones."""
    ranked = [x for x in database.ranked(problem.key) if not _is_wrong(database, problem, x)]
    built_in = as_text(problem.built_in())
    chosen = [x for x in ranked if x.text == built_in][:1]
    others = [x for x in ranked if x.text != built_in]
    seen: dict[Any, int] = {}
    for trial in others:
        shape = problem.shape_of(trial.config)
        seen[shape] = seen.get(shape, 0) + 1
        if seen[shape] <= OF_A_SHAPE:
            chosen.append(trial)
    most = FINALISTS + (len(ranked) > len(others))
    left = [x for x in others if x not in chosen]
    return [*chosen, *left][:most]


def is_open(database: Database, problem: Problem) -> bool:
    """Tell whether those who would be compared now have not been compared yet."""
    names = [x.text for x in finalists(database, problem)]
    row = database.finals.get(problem.key)
    if row is None or row.get("is_broken"):
        return bool(names)
    return bool(names) and set(row["finalists"]) != set(names)


def _is_wrong(database: Database, problem: Problem, trial: Trial) -> bool:
    return database.verdict(problem.key, trial) == WRONG


def as_tvm_has_it(problem: Problem) -> Any:
    """Return a function as TVM's simplest schedule has it: no part of this package is in it."""
    if isinstance(problem, MatmulProblem) and problem.accumulate is not None:
        return None  # sums in half precision: ours are of float32, and better
    try:
        with problem.target:
            made = dl.gpu.Fallback().apply(problem.mod["main"], problem.target, False)
    except Exception:  # whatever a rule of TVM's raises: there is no reference then
        return None
    return made.mod if made is not None else None


def _as_library(problem: Problem) -> dict[str, Any] | None:
    """Return the layout of a function that is a product and nothing else."""
    if not isinstance(problem, MatmulProblem):
        return None
    func = problem.mod["main"]
    tensors = [x for x in func.params if tirx.is_buffer_var(x)]
    blocks = [x for x in ir.find_all(func.body, ir.SBlock) if x.iter_vars]
    plain = len(tensors) == 3 and all(len(x.ty.shape) == 2 for x in tensors)
    plain = plain and all(_reduces(x) or _only_casts(x) for x in blocks)
    return {"majors": list(problem.majors)} if plain else None


def _reduces(block: Any) -> bool:
    return any(int(x.iter_type) == tirx.IterVar.CommReduce for x in block.iter_vars)


def _only_casts(block: Any) -> bool:
    value = getattr(block.body, "value", None)
    while isinstance(value, tirx.Cast):
        value = value.value
    return isinstance(value, ir.TensorLoad)


def as_record(problem: Problem, trial: Trial) -> str | None:
    """Return a trial as a record of TVM's JSONDatabase; None where it cannot replay the trace.

    A function that has to be rewritten first is scheduled from there on.
    """
    start = hs.normalize(problem.mod)
    if not isinstance(trial.config, hs.MatmulConfig):
        start = hs.widen_sums(start)
    if not start.same_as(problem.mod):
        return None
    with tempfile.TemporaryDirectory() as folder:  # in C++ alone: Python cannot write index maps
        stock = ms.database.JSONDatabase(work_dir=folder)
        record = ms.database.TuningRecord(
            problem.schedule(trial.config).trace,
            stock.commit_workload(problem.mod),
            [trial.seconds],
            problem.target,
            ms.arg_info.ArgInfo.from_entry_func(problem.mod, True),
        )
        stock.commit_tuning_record(record)
        text = (Path(folder) / RECORDS).read_text().strip()
    return text.removeprefix("[0,").removesuffix("]")


def _us(seconds: Sequence[float]) -> float | None:
    return round(1e6 * median(seconds), 3) if seconds else None
