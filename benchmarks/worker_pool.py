"""Processes that each take one task at a time; one that hangs or dies is replaced, not waited for.

A kernel with a broken barrier never ends, and a faulting one leaves its process without a usable
GPU context; `concurrent.futures` would lose the whole pool to either.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

POLL_SECONDS = 1.0


class WorkerError(RuntimeError):
    """A task that gave no result: its process hung or died."""


def _serve(pipe: Connection, function: Callable[[Any], Any]) -> None:
    while True:
        pipe.send(function(pipe.recv()))


class _Worker:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, function), daemon=True)
        self.process.start()
        theirs.close()
        self.task: Any = None
        self.deadline = 0.0

    def start(self, task: Any, limit: float) -> None:
        self.task, self.deadline = task, time.monotonic() + limit
        self.pipe.send(task)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_tasks(
    function: Callable[[Any], Any],
    tasks: Iterable[Any],
    workers: int,
    task_seconds: float,
    until: float,
    is_fatal: Callable[[Any], bool] = lambda result: False,
) -> Iterator[tuple[Any, Any]]:
    """Yield (task, result) as they come; a result is a `WorkerError` where there is none.

    Parameters
    ----------
    function
        Importable; called in the worker processes.
    task_seconds
        Longest time of one task, its process' start included.
    until
        `time.monotonic()` at which no further task is started.
    is_fatal
        Tells from a result that its process must not be used again.
    """
    queue = iter(tasks)
    crew: list[_Worker] = []

    def give(worker: _Worker) -> bool:
        task = next(queue, None) if time.monotonic() < until else None
        if task is not None:
            worker.start(task, task_seconds)
        return task is not None

    def replace(worker: _Worker) -> None:
        worker.end()
        crew.remove(worker)
        fresh = _Worker(function)
        if give(fresh):
            crew.append(fresh)
        else:
            fresh.end()

    try:
        for _ in range(workers):
            worker = _Worker(function)
            if not give(worker):
                worker.end()
                break
            crew.append(worker)
        while crew:
            ready = wait([w.pipe for w in crew], POLL_SECONDS)
            for worker in [w for w in crew if w.pipe in ready]:
                task = worker.task
                try:
                    result = worker.pipe.recv()
                except (EOFError, ConnectionResetError):
                    code = (worker.process.join(5), worker.process.exitcode)[1]
                    replace(worker)
                    yield task, WorkerError(f"process died with exit code {code}")
                    continue
                if is_fatal(result):
                    replace(worker)
                elif not give(worker):
                    worker.end()
                    crew.remove(worker)
                yield task, result
            for worker in [w for w in crew if time.monotonic() > w.deadline]:
                task = worker.task
                replace(worker)
                yield task, WorkerError(f"no result after {task_seconds:.0f} s")
    finally:
        for worker in crew:
            worker.end()
