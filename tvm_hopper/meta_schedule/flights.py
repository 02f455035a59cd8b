"""Batches of trials in flight: built by a builder, measured by a runner.

    flights = Flights(builder, runner, target)
    flights.start(task, candidates)          returns at once
    flights.finished()                       outcomes, one batch at a time

While GPUs run a batch, and while another one is built, the next one is proposed.
"""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_hopper.errors import cannot_tune

from .search import Candidate
from .tasks import Task
from .workers.pool import NOT_TRIED

POLL = 0.01  # seconds between two looks at a runner, so that Ctrl-C is heard
LONGEST = 1e9  # seconds, above which TVM means a failure
ERROR_CHARACTERS = 600  # that a record keeps


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of one candidate: its times in seconds, or the reason for none.

    - `device` (dict): what the GPU says of itself, where the runner tells.
    - `details` (dict): what else the runner tells: its worker, times as they were measured, the
      clock.
    """

    task: Task
    candidate: Candidate
    seconds: list[float] | None
    error: str | None
    device: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def was_not_tried(self) -> bool:
        """Whether no worker was available: this is no trial."""
        return self.error is not None and self.error.partition(": ")[2].startswith(NOT_TRIED)


@dataclass(eq=False)
class _Flight:
    task: Task
    candidates: list[Candidate]
    handed: Future[list[tuple[Any, Any]]]  # what was built, and its run; None where nothing was


class Flights:
    """Batches under way.

    - `builder` (tvm.s_tir.meta_schedule.builder.Builder): any; `build` returns once all are built.
    - `runner` (tvm.s_tir.meta_schedule.runner.Runner): any; `run` returns futures at once, or
      results that are there already.
    - `target`: what is built for.
    - `while_waiting`: called again and again while a runner is waited for; it may raise.
    """

    def __init__(
        self,
        builder: Any,
        runner: Any,
        target: Target,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._builder, self._runner, self._target = builder, runner, target
        self._while_waiting = while_waiting
        self._flying: deque[_Flight] = deque()
        # A builder blocks, and most of the time it is other processes that work. One of ours says
        # how many batches it takes at once; TVM's are requested one after another.
        count = int(getattr(builder, "batches", 1))
        self._most = count + 1  # one more is on the GPUs
        self._thread = ThreadPoolExecutor(count, thread_name_prefix="build")

    @property
    def is_full(self) -> bool:
        """Whether a batch must be collected before the next one starts."""
        return len(self._flying) >= self._most

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return not self._flying

    def count(self, task: Task | None = None) -> int:
        """Return how many trials are under way, of one task or of all."""
        return sum(len(x.candidates) for x in self._flying if task is None or x.task is task)

    def start(self, task: Task, candidates: list[Candidate]) -> None:
        """Let a batch be built and handed to the runner."""
        handed = self._thread.submit(self._hand_over, task, candidates)
        self._flying.append(_Flight(task, candidates, handed))

    def close(self) -> None:
        """Begin nothing more; abandon what is under way."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _hand_over(self, task: Task, candidates: list[Candidate]) -> list[tuple[Any, Any]]:
        inputs = [ms.builder.BuilderInput(x.mod, self._target, None) for x in candidates]
        built = list(self._builder.build(inputs))
        _check_count("builder", built, inputs)
        arguments = ms.arg_info.ArgInfo.from_entry_func(task.problem.mod, True)
        runs = [
            ms.runner.RunnerInput(str(x.artifact_path), self._target.kind.name, arguments)
            for x in built
            if x.artifact_path is not None
        ]
        run_futures = list(self._runner.run(runs)) if runs else []
        _check_count("runner", run_futures, runs)
        futures = iter(run_futures)
        return [(x, None if x.artifact_path is None else next(futures)) for x in built]

    def finished(self) -> Iterator[Outcome]:
        """Wait for the oldest batch, and yield its outcomes one by one."""
        if not self._flying:
            return
        flight = self._flying[0]
        self._wait(flight.handed.done)
        handed = flight.handed.result()
        for candidate, (built, future) in zip(flight.candidates, handed, strict=True):
            yield self._outcome(flight.task, candidate, built, future)
        self._flying.popleft()

    def _wait(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self._while_waiting()
            time.sleep(POLL)

    def _outcome(self, task: Task, candidate: Candidate, built: Any, future: Any) -> Outcome:
        if future is None:
            return Outcome(task, candidate, None, f"build: {built.error_msg}"[:ERROR_CHARACTERS])
        self._wait(future.done)
        result, path = future.result(), str(built.artifact_path)
        shutil.rmtree(Path(path).parent, ignore_errors=True)  # some runners did that by themselves
        device, details = _details_of(self._runner, path)
        if result.run_secs is None:
            error = f"run: {result.error_msg}"[:ERROR_CHARACTERS]
            return Outcome(task, candidate, None, error, device, details)
        times = [float(x) for x in result.run_secs]
        if not times or not all(0 < x < LONGEST for x in times):
            return Outcome(task, candidate, None, f"run: found times {times[:3]}", device, details)
        return Outcome(task, candidate, times, None, device, details)


def _check_count(who: str, results: list[Any], inputs: list[Any]) -> None:
    if len(results) != len(inputs):
        raise cannot_tune(who, f"{len(results)} results for {len(inputs)} inputs", "one for each")


def _details_of(runner: Any, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a runner of this package knows of a measurement next to its times."""
    take = getattr(runner, "take", None)
    measurement = take(path) if take is not None else None
    if measurement is None:
        return {}, {}
    details = {
        "worker": str(measurement.worker),
        "as_measured": [float(x) for x in measurement.seconds],
        "megahertz": float(measurement.megahertz),
        "worker_seconds": round(float(measurement.worker_seconds), 4),
    }
    device = {str(k): v for k, v in measurement.device.items()}
    return {**device, "is_fake": True} if measurement.is_fake else device, details


class InterruptNoted:
    """Notes Ctrl-C, in the main thread; elsewhere it does nothing."""

    def __init__(self) -> None:
        self.is_requested = False
        self._before: Any = None

    def __enter__(self) -> InterruptNoted:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was requested."""
        if self.is_requested:
            raise KeyboardInterrupt

    def _hear(self, *_: object) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True
        print("interrupted: checking what was found; again to leave", file=sys.stderr)
