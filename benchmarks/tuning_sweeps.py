"""Every configuration of problems, measured on one GPU, those first that the model thinks best.

    python -m benchmarks.tuning_sweeps --work-dir tuned --swept 4x5120x29568 --part 0/2

Of all problems first what the model calls at most --near times as slow as the best, then every
eighth of the others, then the rest. A line of the work folder for each, at once: the next run goes
on where this one ended. `python -m benchmarks.tuning sweeps` starts one of these for each GPU, and
times the best.

With --wait nothing here disturbs a search that goes on in the same folder: building begins, with
the lowest priority, when its last round does, and measuring when the file `MEASURE` is there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from .tuning_programs import NORMS, SWEPT, Module, norms, products

REPEATS = 7  # of each configuration of a sweep
PROCESSES = 6  # that load, and measure in turn
EVERY = 8  # of those that the model calls slow, before all of them
POLL = 0.01
FLYING = 48  # measurements that are handed to the runner
LOW = 10  # priority of what builds
MEASURE = "sweep_measures"  # a file: the GPU is free now
PRELOADED = "tvm_hopper.meta_schedule.measuring.compile"
LAST_ROUND = re.compile(r'"is": ?"final"')


def sweep_part(arguments: argparse.Namespace) -> int:
    """Measure a part of all configurations of problems on one GPU; a line for each, at once."""
    from tvm_hopper import meta_schedule as hms
    from tvm_hopper.meta_schedule.runner import visible_gpus

    from . import matmul_case

    end = time.monotonic() + arguments.seconds
    part, parts = (int(x) for x in arguments.part.split("/"))
    matmul_case.register()
    os.environ.update(OMP_NUM_THREADS="1", TVM_NUM_THREADS="1")
    gpus = visible_gpus()
    runner = (
        hms.FakeRunner()
        if arguments.fake
        else hms.GpuRunner([gpus[part]], repeats=REPEATS, processes=PROCESSES)
    )
    problems = swept_problems(arguments)
    wanted = in_order(problems, arguments.near, arguments.most)[part::parts]
    if not arguments.fake:
        runner.start()
    count = arguments.workers or os.cpu_count() or 2
    begun = (os.getpid(), arguments.problems)
    context = get_context("forkserver")  # TVM is imported once, not by each of them
    context.set_forkserver_preload([PRELOADED])
    pool = ProcessPoolExecutor(count, context, initializer=_begin, initargs=begun)
    files = {
        name: swept_file(arguments.work_dir, x, part).open("a") for name, x in problems.items()
    }
    try:
        for name, row in _swept(wanted, problems, (pool, runner), end, arguments):
            files[name].write(json.dumps({**row, "at": round(time.time(), 3)}) + "\n")
            files[name].flush()
    finally:
        for file in files.values():
            file.close()
        building = list(pool._processes.values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in building:  # what they have at hand is of no use any more
            process.kill()
        runner.close()
    return 0


def swept_modules(arguments: argparse.Namespace) -> dict[str, Module]:
    """Return what is swept by name, in the order in which it is named."""
    known = {**products(arguments.problems), **norms(len(NORMS))}
    found = [(n, x) for s in arguments.swept for n, x in known.items() if n.split(" ")[0] == s]
    return dict(found)


def swept_problems(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the problems that are swept by name."""
    from tvm_hopper.meta_schedule.tasks import find_tasks

    from . import matmul_case

    found = {}
    for name, (mod, _) in swept_modules(arguments).items():
        (task,) = find_tasks(mod, matmul_case.TARGET)
        found[name] = task.problem
    return found


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


def staged(problem: Any, near: float | None) -> list[list[Any]]:
    """Return all configurations: those that the model calls near the best, samples, the rest."""
    space = problem.configurations()
    times = problem.estimates(space)
    ranked = [(space[i], times[i]) for i in times.argsort(kind="stable").tolist()]
    limit = math.inf if near is None else near * times.min(initial=math.inf)
    close = [x for x, time in ranked if time <= limit]
    others = [x for x, _ in ranked[len(close) :]]
    return [close, others[::EVERY], [x for i, x in enumerate(others) if i % EVERY]]


def in_order(
    problems: dict[str, Any], near: float | None, most: int | None
) -> list[tuple[str, Any]]:
    """Return problems' names with configurations: first what is near the best of each of them."""
    stages = {name: staged(problem, near) for name, problem in problems.items()}
    found: list[tuple[str, Any]] = []
    for stage in range(3):
        for name, parts in stages.items():
            left = None if most is None else max(0, most - sum(map(len, parts[:stage])))
            found += [(name, x) for x in parts[stage][:left]]
    return found


@dataclass(eq=False)
class _Made:
    name: str
    text: str
    built: Future[str]
    run: Any = None
    path: str = ""


def _swept(
    wanted: Sequence[tuple[str, Any]],
    problems: dict[str, Any],
    tools: tuple[ProcessPoolExecutor, Any],
    end: float,
    arguments: argparse.Namespace,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Build all, and measure as soon as that is allowed; yield rows with their problem's name."""
    from tvm.s_tir import meta_schedule as ms

    from tvm_hopper.meta_schedule.configurations import as_text

    pool, runner = tools
    done = {name: read_sweep(arguments.work_dir, x) for name, x in problems.items()}
    infos = {name: ms.arg_info.ArgInfo.from_entry_func(x.mod, True) for name, x in problems.items()}
    list(pool.map(abs, range(pool._max_workers)))  # all of them start
    while arguments.wait and not is_last_round(arguments.work_dir) and time.monotonic() < end:
        time.sleep(0.1)
    with tempfile.TemporaryDirectory(
        prefix="tvm_hopper_sweep_", ignore_cleanup_errors=True
    ) as folder:
        texts = [(name, as_text(x)) for name, x in wanted]
        waiting = deque(
            _Made(name, text, pool.submit(_make, name, text, folder))
            for name, text in texts
            if text not in done[name]
        )
        flying: deque[_Made] = deque()
        is_allowed = not arguments.wait
        while (waiting or flying) and time.monotonic() < end:
            is_allowed = is_allowed or (arguments.work_dir / MEASURE).exists()
            while is_allowed and waiting and waiting[0].built.done() and len(flying) < FLYING:
                one = waiting.popleft()
                try:
                    one.path = one.built.result()
                except BrokenProcessPool:
                    return  # what is left is for the next run
                except Exception as error:
                    yield one.name, {**_row(one), "error": f"{error}"[:200]}
                    continue
                asked = ms.runner.RunnerInput(one.path, "cuda", infos[one.name])
                (one.run,) = runner.run([asked])
                flying.append(one)
            while flying and flying[0].run.done():
                one = flying.popleft()
                yield from _measured(one, runner)
            time.sleep(POLL)


def _row(one: _Made) -> dict[str, Any]:
    return {"configuration": one.text, "seconds": None}


def _measured(one: _Made, runner: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    from tvm_hopper.meta_schedule.workers.pool import NOT_TRIED

    result, known = one.run.result(), runner.take(one.path)
    if result.run_secs is None:
        error = str(result.error_msg)
        if NOT_TRIED not in error:
            yield one.name, {**_row(one), "error": error[:200]}
        return
    seconds = statistics.median(float(x) for x in result.run_secs)
    took = None if known is None else round(float(known.worker_seconds), 4)
    yield one.name, {**_row(one), "seconds": seconds, "worker_seconds": took}


def is_last_round(work_dir: Path) -> bool:
    """Tell whether a search in the folder has ended: its best are compared."""
    from tvm_hopper.meta_schedule.journal import FILE

    path = work_dir / FILE
    return path.is_file() and bool(LAST_ROUND.search(path.read_text(errors="replace")))


_problems: dict[str, Any] = {}
_taken: Any = None


def _begin(starter: int, count: int) -> None:
    """Begin a process that schedules and builds."""
    global _taken
    os.nice(LOW)  # before TVM is imported, beside a search that begins
    from tvm_hopper.integration import autoload
    from tvm_hopper.meta_schedule.measuring import compile as building

    threading.Thread(target=_end_with, args=(starter,), daemon=True).start()
    autoload.register()
    _taken = building._take_device_code()
    _problems.update({**products(count), **norms(len(NORMS))})


def _end_with(starter: int) -> None:
    """End this process when the one is gone that wants its work: it is not the parent."""
    while True:
        try:
            os.kill(starter, 0)
        except OSError:
            os._exit(1)
        time.sleep(0.5)


def _make(name: str, text: str, folder: str) -> str:
    """Schedule a configuration and build it; return where its artifact is."""
    from tvm_hopper.meta_schedule.configurations import from_text
    from tvm_hopper.meta_schedule.measuring.compile import build_artifact
    from tvm_hopper.meta_schedule.schedulers import schedule_fast
    from tvm_hopper.meta_schedule.tasks import find_tasks

    from . import matmul_case

    if isinstance(_problems[name], tuple):
        (task,) = find_tasks(_problems[name][0], matmul_case.TARGET)
        _problems[name] = task.problem
    problem = _problems[name]
    mod = schedule_fast(problem, from_text(text)).mod
    _taken.clear()
    return str(build_artifact(mod, problem.target, Path(folder), _taken))


# -- what starts one for each GPU


def start(arguments: argparse.Namespace, seconds: float, count: int) -> list[Any]:
    """Start a process for each GPU, which waits until it may measure."""
    workers = arguments.workers or max(1, (os.cpu_count() or 2) // count)
    (arguments.work_dir / MEASURE).unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.tuning_sweeps", "--wait"]
    command += ["--work-dir", str(arguments.work_dir), "--seconds", str(seconds)]
    command += ["--workers", str(workers), "--problems", str(arguments.problems)]
    command += ["--swept", *arguments.swept, *["--fake"] * arguments.fake]
    command += ["--most", str(arguments.most)] if arguments.most else []
    command += ["--near", str(arguments.near)] if arguments.near else []
    return [
        subprocess.Popen([*command, "--part", f"{i}/{count}"], stdout=sys.stderr)
        for i in range(count)
    ]


def finish(running: list[Any], work_dir: Path, seconds: float) -> None:
    """Let them measure, and wait for them; not for longer than said."""
    end = time.monotonic() + seconds
    (work_dir / MEASURE).write_text("")
    for process in running:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which configurations of what are measured, and by how many processes."""
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=280.0, help="for all parts together")
    parser.add_argument("--swept", nargs="*", default=list(SWEPT))
    parser.add_argument("--most", type=int, help="configurations of a problem in a sweep")
    parser.add_argument("--workers", type=int, help="builders of a sweep")
    parser.add_argument(
        "--near", type=float, help="times the least estimate: what a sweep begins with"
    )
    parser.add_argument("--fake", action="store_true", help="no GPU: times of a model")


def main(argv: list[str]) -> int:
    """Measure one part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning_sweeps", description=__doc__)
    add_arguments(parser)
    parser.add_argument(
        "--part", default="0/1", help="which, of how many: on the GPU of the number"
    )
    parser.add_argument("--wait", action="store_true", help="for a search in the same folder")
    return sweep_part(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
