"""`tune`: search, build, measure, verify and record the configurations of a module.

    database = tvm_hopper.tune(mod, target, trials=512, gpus="all", work_dir="tuned")

Every trial is on the disk before the next one is requested, so that a run may be interrupted or
killed at any moment and begun again with the same words.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_hopper.errors import cannot_tune

from .arguments import check_method, check_number, check_seconds
from .budget import Account, choose, share, why_enough
from .checking import Check, Simulated
from .configurations import as_text
from .database import Database, Trial
from .finals import Bench, Finals, is_open
from .flights import Flights, InterruptNoted, Outcome
from .journal import Journal, as_folder
from .neighbours import near_trials
from .progress import Progress
from .report import TuningReport, wide_console
from .schedulers import Schedule, Schedulers, scheduled_here, spare_processes
from .search import Measured, Search
from .tasks import Task, TaskList, as_target, look_for_tasks
from .versions import machine, part
from .workers.process import usable_cpus

if TYPE_CHECKING:
    from typing_extensions import Unpack

BATCH = 8  # trials of a task at once: both workers of a builder have some, and the model learns
MOST_TRIALS = 1_000_000


@dataclass(frozen=True)
class TuneOptions:
    """Parameters of `tune`, which says what each is, and the checks of their values."""

    trials: int = 64
    seconds: float | None = None
    gpus: Any = "all"
    each: int | None = None
    runner: Any = None
    builder: Any = None
    tracker: str | None = None
    batch: int = BATCH
    check: Check | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        check_number("tune", "trials", self.trials, MOST_TRIALS)
        check_number("tune", "batch", self.batch, 1024)
        if self.each is not None:
            check_number("tune", "each", self.each, MOST_TRIALS)
        if self.seconds is not None:
            check_seconds("tune", self.seconds)
        if self.runner is not None and self.tracker is not None:
            need = "one of the two: a tracker has its own"
            raise cannot_tune("tune", "a runner and a tracker", need)
        for name, method, need in (
            ("runner", "run", "a runner of MetaSchedule, e.g. GpuRunner()"),
            ("builder", "build", "a builder of MetaSchedule, e.g. ArtifactBuilder()"),
            ("check", "__call__", "what takes a problem and a configuration"),
        ):
            check_method("tune", name, getattr(self, name), method, need)

    @contextlib.contextmanager
    def bench(self, target: Target, is_needed: bool) -> Iterator[Bench]:
        """Yield what builds and measures; what is not the caller's is closed afterwards.

        Where there is nothing to measure, that is no more than the caller gave.
        """
        with contextlib.ExitStack() as stack:
            runner, builder = self.runner, self.builder
            if runner is None and is_needed:
                runner = self._make_runner()
                stack.callback(runner.close)
            if builder is None and is_needed:
                builder = _measuring("ArtifactBuilder")()
                stack.callback(builder.close)
                builder.start()  # while the spaces are listed
            yield Bench(builder, runner, target)

    def _make_runner(self) -> Any:
        if self.tracker is not None:
            return _measuring("RpcRunner")(self.tracker)
        return _measuring("GpuRunner")(self.gpus)


class TuneKeywords(TypedDict, total=False):
    """Types of the rarer fields of `TuneOptions` as keywords."""

    each: int | None
    runner: ms.runner.Runner | None
    builder: ms.builder.Builder | None
    tracker: str | None
    batch: int
    check: Check | None
    progress: bool | None


def tune(
    mod: Any,
    target: Any = None,
    *,
    trials: int = 64,
    seconds: float | None = None,
    gpus: Any = "all",
    work_dir: str | Path = "tuned",
    **options: Unpack[TuneKeywords],
) -> Database:
    """Tune the functions of a module, and keep the best verified configurations.

    Parameters
    ----------
    mod : IRModule or PrimFunc
        Functions in plain loops, or a Relax model. A model without PrimFuncs is first prepared as
        its pipeline does; otherwise its PrimFuncs are tuned.
    target : Target, str or dict, optional
        A Hopper GPU, e.g. "nvidia/nvidia-h200"; None: the target in scope.
    trials : int
        Total number of measured kernels, including those already in `work_dir`.
    seconds : float, optional
        Time limit, after which no trial starts.
    gpus : str or list of int
        GPUs of this machine that measure, or "all".
    work_dir : str or Path
        Folder of the records. A run with the same folder continues the last one.
    each : int, optional
        Maximum number of trials for one function.
    runner : tvm.s_tir.meta_schedule.runner.Runner, optional
        A runner to use instead.
    builder : tvm.s_tir.meta_schedule.builder.Builder, optional
        A builder; None: warm worker processes of this machine.
    tracker : str, optional
        "host:port/key" of a TVM RPC tracker whose servers measure.
    batch : int
        Trials of one function at once.
    check : callable, optional
        Verifies winners, see `meta_schedule.checking`. None: the GPU compares with the program as
        TVM schedules it; without a GPU the simulator verifies.
    progress : bool, optional
        Whether to show progress on stderr; None: if it is a terminal.

    Returns
    -------
    database : Database
        The database of `work_dir`, for `relax.get_pipeline("tvm_hopper", database=...)`,
        `meta_schedule.apply` and `meta_schedule.lookup`.

    Raises
    ------
    TuningError
        An argument is illegal, nothing can be tuned, or the records in `work_dir` are unreadable or
        of other versions. Or all GPUs or servers are gone; the same call continues later.
    KeyboardInterrupt
        Ctrl-C, after the measurements so far are verified and kept.
    """
    tune_options = TuneOptions(trials, seconds, gpus, **options)
    folder = as_folder(work_dir, "tune")
    where = as_target(target)
    task_list = _tasks_of(mod, where)
    processes = Schedulers(spare_processes(usable_cpus()))
    with Journal(folder) as journal, contextlib.closing(processes) as schedulers:
        run = Run(journal, task_list, where, tune_options, schedulers.schedule)
        if run.left() > 0:
            schedulers.start()
        run.go_on()
        if tune_options.progress or (tune_options.progress is None and sys.stderr.isatty()):
            wide_console(stderr=True).print(TuningReport(run.database).table())
        return run.database


def _tasks_of(mod: Any, target: Target) -> TaskList:
    """Find what can be tuned, at least one function."""
    task_list = look_for_tasks(mod, target)
    if task_list.tasks:
        return task_list
    reasons = "; ".join(f"{name}: {why}" for name, why in task_list.left.items()) or "no PrimFunc"
    need = "a PrimFunc in plain loops: a product, reductions of rows, or elementwise (Relax"
    need += " operators become some by tvm_hopper.relax.prepare)"
    raise cannot_tune("tune", reasons[:1000], need)


class Run:
    """One tuning run over the log of a work folder."""

    def __init__(
        self,
        journal: Journal,
        task_list: TaskList,
        target: Target,
        options: TuneOptions,
        schedule: Schedule = scheduled_here,
    ) -> None:
        self._options, self._each, self._schedule = options, options.each, schedule
        self._end = None if options.seconds is None else time.monotonic() + options.seconds
        self._journal = journal
        self._no_worker = ""  # why no worker is left to build or to measure
        self._target = target
        self.database = Database.of(journal)
        self._announce(task_list)
        self._here = machine()
        self._tasks = task_list.tasks
        self.accounts: list[Account] = []

    def left(self) -> int:
        """Return how many of the trials that were requested are not made yet."""
        trials = self._options.trials
        if self._each is not None:
            trials = min(trials, self._each * len(self._tasks))
        if self.accounts:
            return trials - sum(account.trials for account in self.accounts)
        return trials - sum(len(self.database.trials(x.problem.key)) for x in self._tasks)

    def go_on(self) -> None:
        """Search, compare and check what is not done yet, with what builds and measures."""
        is_undecided = any(is_open(self.database, x.problem) for x in self._tasks)
        is_needed = self.left() > 0 or is_undecided
        with self._options.bench(self._target, is_needed) as bench:
            if is_needed:
                self.accounts = [self._open(task) for task in self._tasks]
            with InterruptNoted() as interrupt:
                self._search(bench, interrupt)
                self._check_company()
                self._finish(bench)
                interrupt.check()

    def _search(self, bench: Bench, interrupt: InterruptNoted) -> None:
        """Propose, build and measure until the trials are used up or nothing is worth one.

        After Ctrl-C what is under way is abandoned.
        """
        if self.left() <= 0:
            return
        batch = self._options.batch
        flights = Flights(bench.builder, bench.runner, self._target, interrupt.check)
        shown = Progress(self.accounts, self._options.trials, self._options.progress)
        with contextlib.closing(flights), contextlib.suppress(KeyboardInterrupt), shown:
            while True:
                interrupt.check()
                for account in self.accounts:
                    if not account.stopped and not account.under_way:
                        account.stopped = why_enough(account, self._each)
                left = self.left() - flights.count()
                may_start = left > 0 and not flights.is_full and not self._is_late
                may_start = may_start and not self._no_worker
                chosen = choose(self.accounts, 2 * batch, self._each) if may_start else None
                if chosen is not None:
                    count = share(chosen, self.accounts, left, batch, self._each)
                    self._start(chosen, count, flights)
                elif flights.is_empty:
                    break
                else:
                    for outcome in flights.finished():
                        self._keep(outcome)
                        done = sum(x.trials for x in self.accounts)
                        shown.update(self._account(outcome.task), done)
        self._say_why()

    def _say_why(self) -> None:
        """Log why searches have ended."""
        for account in self.accounts:
            key, why = account.task.problem.key, account.stopped
            if not why and self._is_late and self._end is not None:
                why = "the time was up"
            if why and self.database.ended(key) != why:
                self._append({"is": "end", "workload": key, "trials": account.trials, "why": why})

    def _check_company(self) -> None:
        """Stop if no worker is left, whose failures would count as bad kernels.

        - raises TuningError: all workers, GPUs or servers are gone.
        """
        if self._no_worker:
            made = sum(x.trials for x in self.accounts)
            raise cannot_tune(
                "tune",
                f"{self._no_worker[:600]}, after {made} trials",
                "processes that build, and GPUs or servers that measure",
                f"the same call goes on from there: {self._journal.folder} has what was measured",
            )

    def _finish(self, bench: Bench) -> None:
        """Compare the fastest, check the winners, and write what TVM's own database reads."""
        users_check = self._options.check
        finals = Finals(
            *(self.database, self._append, bench, users_check or Simulated()),
            is_users=users_check is not None,
            schedule=self._schedule,
        )
        finals.hold([x.problem for x in self._tasks])
        self.database.write_stock()

    @property
    def _is_late(self) -> bool:
        return self._end is not None and time.monotonic() > self._end

    def _append(self, row: dict[str, Any]) -> None:
        self._journal.append(row)
        self.database.add(row)

    def _announce(self, task_list: TaskList) -> None:
        """Write the functions and their size classes into the log, those that it lacks."""
        for task in task_list.tasks:
            problem = task.problem
            choice = problem.resolved(problem.built_in())
            row = {
                "is": "workload",
                "key": problem.key,
                "name": task.name,
                "weight": task.weight,
                "form": problem.form,
                "extents": list(problem.extents),
                **part(self._target),
                "target": str(self._target),
                "choice": as_text(choice),
                "bytes": problem.moved_bytes,
                "multiply_adds": problem.multiply_adds,
                "bound_us": problem.bound_us,
            }
            for module in [problem.mod, *task.modules]:
                text = json.dumps(ms.database.Workload(module).as_json())
                if not self.database.has_module(problem.key, text):
                    self._append({**row, "module": text})
        for classes in task_list.classes:
            row = {
                "is": "classes",
                "key": classes.key,
                "name": classes.name,
                **part(self._target),
                "bounds": [list(x) for x in classes.bounds],
            }
            if self.database.classes.get(classes.key) != row:
                self._append(row)

    def _machine(self, known: dict[str, Any]) -> int:
        """Return the number of a machine, under which the log says once what it is."""
        for row in self.database.machines:
            if {k: v for k, v in row.items() if k not in ("is", "number")} == known:
                return int(row["number"])
        number = len(self.database.machines)
        self._append({"is": "machine", "number": number, **known})
        return number

    def _open(self, task: Task) -> Account:
        """Begin the search of a task with what the log knows of it and of problems like it."""
        known = self.database.trials(task.problem.key)
        near = near_trials(self.database, task.problem)
        search = Search(task.problem, [x.measured for x in known], near, self._schedule)
        failed = sum(x.seconds is None for x in known)
        return Account(task, search, trials=len(known), failed=failed)

    def _account(self, task: Task) -> Account:
        return next(x for x in self.accounts if x.task is task)

    def _start(self, account: Account, count: int, flights: Flights) -> None:
        candidates = account.search.propose(count)
        if not candidates:
            why = why_enough(account, self._each)  # what was left makes no kernel of its own
            account.stopped = account.stopped or why or "no other configuration is legal"
            return
        account.under_way += len(candidates)
        flights.start(account.task, candidates)

    def _keep(self, outcome: Outcome) -> None:
        """Write a trial into the log, and let its search learn from it."""
        account, candidate = self._account(outcome.task), outcome.candidate
        if outcome.was_not_tried:
            account.under_way -= 1
            self._no_worker = str(outcome.error)
            return
        where = self._machine(outcome.device or self._here)
        self._append(
            {
                "is": "trial",
                "workload": outcome.task.problem.key,
                "configuration": as_text(candidate.config),
                "kernel": candidate.kernel,
                "seconds": outcome.seconds,
                "error": outcome.error,
                "machine": where,
                **outcome.details,
                "predicted": candidate.predicted_us,
                "at": round(time.time(), 3),
            }
        )
        trial: Trial = self.database.trials(outcome.task.problem.key)[-1]
        measured: Measured = trial.measured
        account.search.report(measured)
        account.trials += 1
        account.under_way -= 1
        account.failed += outcome.seconds is None


def _measuring(name: str) -> Any:
    """Return a builder or runner of the package, which is loaded only where none is given."""
    return getattr(importlib.import_module("tvm_hopper.meta_schedule"), name)
