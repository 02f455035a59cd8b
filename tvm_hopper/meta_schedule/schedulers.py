"""Schedule candidates in parallel in warm processes.

    schedulers = Schedulers(8)
    schedulers.schedule(problem, [(config, True), ..])    modules, kernels' names; None: refused

If a process gives no answer, or there are none, this process schedules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.errors import HopperError
from tvm_hopper.requests import keys
from tvm_hopper.schedule.dry_run import left_to_the_build
from tvm_hopper.schedule.trial import thrown_away_if_refused

from .configurations import Configuration, as_text, from_text
from .problems import Problem
from .workers.pool import WorkerPool
from .workers.process import WorkerProcess

NOTES = (keys.CHOSEN, keys.CHOSEN_FOR, keys.CONFIGURATION)  # that change no code
FEWEST_CPUS = 8  # of which builders can spare some
CPUS, MOST = 4, 8  # for each process, and how many there are
SECONDS = 60.0
KEPT = 64  # modules of a process

Request = tuple[Configuration, bool]  # and whether it is built at once, elsewhere


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A module with a configuration, and the name of its kernel; the schedule, if made here."""

    mod: tvm.IRModule
    kernel: str
    sch: s_tir.Schedule | None = None


Schedule = Callable[[Problem, Sequence[Request]], list[Scheduled | None]]


def scheduled_here(problem: Problem, requests: Sequence[Request]) -> list[Scheduled | None]:
    """Schedule configurations in this process; None is one that does not fit."""
    results: list[Scheduled | None] = []
    for config, is_fast in requests:
        try:
            sch = schedule_fast(problem, config) if is_fast else problem.schedule(config)
        except HopperError:
            results.append(None)
            continue
        results.append(Scheduled(sch.mod, kernel_name(sch), sch))
    return results


def schedule_fast(problem: Problem, config: Configuration) -> s_tir.Schedule:
    """Schedule a configuration that is built at once, elsewhere: nothing is tried or lowered here.

    - raises ScheduleError: it does not fit.
    """
    with left_to_the_build():
        try:
            with thrown_away_if_refused():
                return problem.schedule(config)
        except HopperError:  # some are served on a second try
            return problem.schedule(config)


def kernel_name(sch: s_tir.Schedule) -> str:
    """Name what a schedule computes and how, without the notes that change no code."""

    def without(node: Any) -> Any:
        rest = {k: v for k, v in node.annotations.items() if k not in NOTES}
        if len(rest) == len(node.annotations):
            return node
        if isinstance(node, ir.For):
            return ir.with_body(node, node.body, annotations=rest)
        return ir.with_block(node, annotations=rest)

    mod = sch.mod
    body = mod["main"].body
    for kind in (ir.For, ir.SBlock):
        body = ir.replace(body, kind, without)
    return f"{int(tvm_ffi.structural_hash(mod['main'].with_body(body))) & (1 << 64) - 1:016x}"


class Schedulers:
    """Processes that schedule.

    - `count`: how many; 0: none, this process does.
    """

    def __init__(self, count: int) -> None:
        threads = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
        names = [f"scheduler {i}" for i in range(count)]
        self._pool: WorkerPool | None = None
        if count:
            stations = [WorkerProcess(name, "schedule", environment=threads) for name in names]
            self._pool = WorkerPool(stations, seconds=SECONDS, attempts=1, retire_after=3)

    def start(self) -> None:
        """Let the processes start, which takes seconds; without it the first request does."""
        if self._pool is not None:
            self._pool.start()

    def schedule(self, problem: Problem, requests: Sequence[Request]) -> list[Scheduled | None]:
        """Schedule configurations of one problem; None is one that does not fit.

        - `requests`: each a configuration, and whether to leave out the rehearsal of what is built
          at once, elsewhere.
        """
        if self._pool is None:
            return scheduled_here(problem, requests)
        fields = {"mod": tvm.ir.save_json(problem.mod), "target": str(problem.target)}
        tasks = [
            self._pool.submit({**fields, "configuration": as_text(config), "is_fast": is_fast})
            for config, is_fast in requests
        ]
        results: list[Scheduled | None] = []
        for request, task in zip(requests, tasks, strict=True):
            task.wait()
            if "refused" in task.reply:
                results.append(None)
            elif "kernel" in task.reply:
                results.append(Scheduled(ir.load_saved(task.reply["mod"]), task.reply["kernel"]))
            else:
                results += scheduled_here(problem, [request])
        return results

    def close(self) -> None:
        """Stop the processes."""
        if self._pool is not None:
            self._pool.close()


def spare_processes(cpus: int) -> int:
    """Return how many processes schedule next to builders, on so many CPUs."""
    return min(MOST, cpus // CPUS) if cpus >= FEWEST_CPUS else 0


def answerer(_settings: dict[str, Any]) -> tuple[Callable[[dict[str, Any]], dict[str, Any]], Any]:
    """Return what schedules one configuration a request, in a separate process."""
    from tvm_hopper.integration import autoload

    autoload.register()
    problems: dict[tuple[str, str], Problem] = {}

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        place = (request["mod"], request["target"])
        if place not in problems:
            if len(problems) >= KEPT:
                problems.clear()
            mod, target = ir.load_saved(place[0]), tvm.target.Target(json.loads(place[1]))
            problems[place] = Problem(mod, target, "", (), 0, 0)
        wanted = (from_text(request["configuration"]), bool(request["is_fast"]))
        (made,) = scheduled_here(problems[place], [wanted])
        if made is None:
            return {"refused": True}
        return {"kernel": made.kernel, "mod": tvm.ir.save_json(made.mod)}

    return answer, {}
