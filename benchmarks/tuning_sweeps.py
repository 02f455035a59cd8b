"""Every configuration of products, measured on one GPU, those first that the model thinks best.

    python -m benchmarks.tuning_sweeps --work-dir tuned --swept 4x5120x29568 --part 0/2

All that the model calls at most --near times as slow as the best, and every eighth of the others.
A line of the work folder for each, at once: the next run goes on where this one ended.
`python -m benchmarks.tuning sweeps` starts one of these for each GPU, and times the best.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from . import matmul_case
from .tuning_programs import SWEPT, products

BATCH, BATCHES = 24, 3  # configurations that are built at once, and how many times
REPEATS = 7  # of each configuration of a sweep
PROCESSES = 3  # that load, and measure in turn
EVERY = 8  # of those that the model calls slow


def sweep_part(arguments: argparse.Namespace) -> int:
    """Measure a part of all configurations of problems on one GPU; a line for each, at once."""
    from tvm_hopper import meta_schedule as hms
    from tvm_hopper.meta_schedule.runner import visible_gpus
    from tvm_hopper.meta_schedule.tasks import find_tasks

    end = time.monotonic() + arguments.seconds
    part, parts = (int(x) for x in arguments.part.split("/"))
    matmul_case.register()
    builder = hms.ArtifactBuilder(arguments.workers)
    builder.batches = BATCHES
    gpus = visible_gpus()
    runner = (
        hms.FakeRunner()
        if arguments.fake
        else hms.GpuRunner([gpus[part]], repeats=REPEATS, processes=PROCESSES)
    )
    known = {name.split(" ")[0]: name for name in products(arguments.problems)}
    scheduled = ProcessPoolExecutor(arguments.schedulers, get_context("spawn"))
    tools = (builder, runner, scheduled)
    try:
        for short in arguments.swept:
            if short in known and time.monotonic() < end:
                name = known[short]
                (task,) = find_tasks(products(arguments.problems)[name][0], matmul_case.TARGET)
                task.name = name
                with swept_file(arguments.work_dir, task.problem, part).open("a") as file:
                    for row in _swept(task, tools, (part, parts), end, arguments):
                        file.write(json.dumps({**row, "at": round(time.time(), 3)}) + "\n")
                        file.flush()
    finally:
        scheduled.shutdown(wait=False, cancel_futures=True)
        runner.close()
        builder.close()
    return 0


def swept_file(work_dir: Path, problem: Any, part: int) -> Path:
    """Return where a part of a sweep is kept."""
    work_dir.mkdir(parents=True, exist_ok=True)
    return work_dir / f"sweep_{problem.key}_{part}.jsonl"


def read_sweep(work_dir: Path, problem: Any) -> dict[str, float | None]:
    """Return what is known of a sweep: configuration -> seconds, None of what failed."""
    found: dict[str, float | None] = {}
    for path in sorted(work_dir.glob(f"sweep_{problem.key}_*.jsonl")):
        for text in path.read_text().splitlines():
            try:
                row = json.loads(text)
            except ValueError:
                continue  # the line that a kill left
            found[row["configuration"]] = row["seconds"]
    return found


def swept_space(problem: Any, near: float | None) -> list[Any]:
    """Return what a sweep measures, best by the model first: a part of it says the most, too."""
    space = problem.configurations()
    times = problem.estimates(space)
    ranked = [(space[i], times[i]) for i in times.argsort(kind="stable").tolist()]
    limit = math.inf if near is None else near * times.min(initial=math.inf)
    close = [x for x, time in ranked if time <= limit]
    return close + [x for x, _ in ranked[len(close) :]][::EVERY]


def _swept(
    task: Any,
    tools: tuple[Any, Any, ProcessPoolExecutor],
    part: tuple[int, int],
    end: float,
    arguments: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    from tvm_hopper.ir import load_saved
    from tvm_hopper.meta_schedule.configurations import as_text, from_text
    from tvm_hopper.meta_schedule.flights import Flights
    from tvm_hopper.meta_schedule.search import Candidate

    problem, (builder, runner, scheduled) = task.problem, tools
    done = read_sweep(arguments.work_dir, problem)
    space = swept_space(problem, arguments.near)
    configs = space[part[0] :: part[1]][: arguments.most]
    flights = Flights(builder, runner, problem.target)
    known: set[str] = set()
    waiting: list[Candidate] = []

    def rows() -> Iterator[dict[str, Any]]:
        for x in flights.finished():
            text, times = as_text(x.candidate.config), x.seconds
            took = x.details.get("worker_seconds")
            row = {"configuration": text, "seconds": statistics.median(times) if times else None}
            yield {**row, "worker_seconds": took, "error": (x.error or "")[:200]}

    texts = [text for text in map(as_text, configs) if text not in done]
    asked = [(task.name, arguments.problems, x) for x in texts]
    for text, kernel, module in scheduled.map(_schedule, asked, chunksize=8):
        if time.monotonic() > end:
            break
        if not kernel:
            yield {"configuration": text, "seconds": None}
            continue
        if kernel in known:
            yield {"configuration": text, "seconds": None, "same_as_another": True}
            continue
        known.add(kernel)
        waiting.append(Candidate(from_text(text), load_saved(module), kernel, 0.0))
        if len(waiting) == BATCH:
            if flights.is_full:
                yield from rows()
            flights.start(task, waiting)
            waiting = []
    if waiting:
        flights.start(task, waiting)
    while not flights.is_empty:
        yield from rows()
    flights.close()


_problems: dict[str, Any] = {}


def _schedule(asked: tuple[str, int, str]) -> tuple[str, str, str]:
    """Return a configuration, its kernel's name and its module; nothing of one that is refused."""
    import tvm

    from tvm_hopper.errors import HopperError
    from tvm_hopper.meta_schedule.configurations import from_text
    from tvm_hopper.meta_schedule.schedulers import kernel_name, schedule_fast
    from tvm_hopper.meta_schedule.tasks import find_tasks

    name, count, text = asked
    if name not in _problems:
        (task,) = find_tasks(products(count)[name][0], matmul_case.TARGET)
        _problems[name] = task.problem
    try:
        sch = schedule_fast(_problems[name], from_text(text))
    except HopperError:
        return text, "", ""
    return text, kernel_name(sch), tvm.ir.save_json(sch.mod)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which configurations of what are measured, and by how many processes."""
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=280.0, help="for all parts together")
    parser.add_argument("--swept", nargs="*", default=list(SWEPT))
    parser.add_argument("--most", type=int, help="configurations of a part of a sweep")
    parser.add_argument("--workers", type=int, help="builders of a sweep")
    parser.add_argument("--near", type=float, help="of a sweep: times the least estimate")
    parser.add_argument("--fake", action="store_true", help="no GPU: times of a model")


def main(argv: list[str]) -> int:
    """Measure one part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning_sweeps", description=__doc__)
    add_arguments(parser)
    parser.add_argument(
        "--part", default="0/1", help="which, of how many: on the GPU of the number"
    )
    parser.add_argument("--schedulers", type=int, default=2, help="processes that schedule")
    return sweep_part(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
