"""Tune problems of the population and norms on a GPU: trials a second, gain, how near the best.

    python -m benchmarks.tuning --work-dir tuned              64 trials x 10 problems, 4 norms
    python -m benchmarks.tuning --work-dir tuned --sweep 3    and every configuration of three
    python -m benchmarks.tuning --work-dir tuned --quick      24 trials x 2 problems, one norm
    python -m benchmarks.tuning --work-dir tuned --quick --fake       without a GPU: no figures

The winner of each is compared with float64 on fresh inputs that lie in poison, and timed anew in
turn with the package's own choice: a search that only picks lucky measurements shows there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from . import machine, matmul_case, timing
from .population import Problem, population

SEED = 3
NORMS = (
    ("rms_norm", 4096, 4096),
    ("layer_norm", 8192, 5120),
    ("softmax", 16384, 2048),
    ("add_rms_norm", 2048, 8192),
)
SWEPT = 32  # configurations that are built at once in a sweep
SET_BYTES = 256 << 20  # of tensors that a timing rotates through, beyond the L2 cache
MOST_SETS = 16


@dataclasses.dataclass
class Result:
    """One tuned problem; times in microseconds."""

    name: str
    trials: int
    failed: int
    seconds: float
    trials_per_second: float
    first_us: float
    best_us: float
    gain: float
    configuration: str
    timed_first_us: float | None = None
    timed_best_us: float | None = None
    timed_gain: float | None = None
    error: float | None = None
    swept: int = 0
    swept_best_us: float | None = None
    share_of_swept: float | None = None
    note: str = ""


def modules(problems: int, norms: int) -> dict[str, tuple[Any, Problem | None]]:
    """Return the programs by name."""
    from tvm_hopper.testing import memory_bound, workloads

    found: dict[str, tuple[Any, Problem | None]] = {}
    for p in population(SEED, problems):
        mod = workloads.matmul(p.m, p.n, p.k, p.layout, p.dtype, p.dtype)
        found[p.name] = (mod, p)
    for program, rows, columns in NORMS[:norms]:
        mod = getattr(memory_bound, program)(rows, columns)
        found[f"{program} {rows}x{columns}"] = (mod, None)
    return found


def tuned(name: str, mod: Any, trials: int, work_dir: Path, runner: Any, builder: Any) -> Any:
    """Tune one program; return what it took and its problem and winner."""
    import tvm_hopper
    from tvm_hopper.meta_schedule.checking import no_check
    from tvm_hopper.meta_schedule.tasks import find_tasks

    start = time.monotonic()
    database = tvm_hopper.tune(
        mod,
        matmul_case.TARGET,
        trials=trials,
        runner=runner,
        builder=builder,
        work_dir=work_dir,
        check=no_check,
        progress=False,
    )
    seconds = time.monotonic() - start
    (task,) = find_tasks(mod, matmul_case.TARGET)
    made = database.trials(task.problem.key)
    winner = database.winner(task.problem.key)
    first, best = made[0].seconds * 1e6, winner.seconds * 1e6
    failed = sum(x.seconds is None for x in made)
    result = Result(
        name,
        len(made),
        failed,
        seconds,
        len(made) / seconds,
        first,
        best,
        first / best,
        winner.text,
    )
    return result, task.problem, winner


def time_anew(problem: Any, winner: Any, repeats: int) -> tuple[float, float]:
    """Return the times of the package's own choice and of the winner, taken in turn."""
    import torch
    import tvm

    arguments = [[int(x) for x in param.ty.shape] for param in problem.mod["main"].params]
    dtypes = [str(param.ty.dtype) for param in problem.mod["main"].params]
    num_sets = max(1, min(MOST_SETS, -(-SET_BYTES // max(1, problem.moved_bytes))))
    sets = [
        [
            torch.randn(shape, device="cuda").to(getattr(torch, dtype))
            for shape, dtype in zip(arguments, dtypes, strict=True)
        ]
        for _ in range(num_sets)
    ]

    def contender(name: str, config: Any) -> timing.Contender:
        kernel = tvm.compile(problem.schedule(config).mod, target=problem.target)["main"]
        return timing.Contender(name, lambda i: kernel(*sets[i]))

    contenders = [
        contender("built-in", problem.built_in()),
        contender("tuned", winner.config),
    ]
    first, best = timing.measure(contenders, num_sets, repeats=repeats)
    return first.median_us, best.median_us


def error_of(p: Problem, config: Any) -> float:
    """Compare the winner with float64 on fresh inputs in poison; return its relative error."""
    fields = {
        f.name: v for f in dataclasses.fields(config) if (v := getattr(config, f.name)) != f.default
    }
    case = matmul_case.Case(p.m, p.n, p.k, p.layout, p.dtype, p.dtype, fields)
    return max(matmul_case.check(case, matmul_case.build(case)["main"], seed=17).values())


def swept(problem: Any, runner: Any, builder: Any) -> tuple[int, float]:
    """Measure every configuration; return how many there were, and the best time."""
    from tvm_hopper.errors import HopperError
    from tvm_hopper.meta_schedule.flights import Flights
    from tvm_hopper.meta_schedule.search import Candidate, kernel_name
    from tvm_hopper.meta_schedule.tasks import Task

    flights = Flights(builder, runner, problem.target)
    task, times, known = Task("sweep", problem), [], set()
    waiting: list[Candidate] = []
    configs = [problem.built_in(), *problem.configurations()]
    for place, config in enumerate(configs):
        try:
            sch = problem.schedule(config)
        except HopperError:
            continue
        if (kernel := kernel_name(sch)) in known:
            continue
        known.add(kernel)
        waiting.append(Candidate(config, sch, kernel, 0.0))
        if len(waiting) == SWEPT or place == len(configs) - 1:
            flights.start(task, waiting)
            waiting = []
            if flights.is_full:
                times += [min(x.seconds) for x in flights.finished() if x.seconds]
    if waiting:
        flights.start(task, waiting)
    while not flights.is_empty:
        times += [min(x.seconds) for x in flights.finished() if x.seconds]
    return len(times), min(times) * 1e6


def run(arguments: argparse.Namespace) -> list[Result]:
    """Tune all programs; one that fails does not end the others."""
    from tvm_hopper import meta_schedule as hms

    matmul_case.register()
    builder = hms.ArtifactBuilder()
    runner = hms.FakeRunner() if arguments.fake else hms.GpuRunner()
    results = []
    programs = modules(arguments.problems, arguments.norms)
    for number, (name, (mod, problem)) in enumerate(programs.items(), 1):
        try:
            result, made, winner = tuned(
                name, mod, arguments.trials, arguments.work_dir, runner, builder
            )
            if not arguments.fake:
                if problem is not None:
                    result.error = error_of(problem, winner.config)
                first, best = time_anew(made, winner, arguments.repeats)
                result.timed_first_us, result.timed_best_us = first, best
                result.timed_gain = first / best
            if number <= arguments.sweep:
                result.swept, result.swept_best_us = swept(made, runner, builder)
                result.share_of_swept = result.swept_best_us / result.best_us
        except Exception as error:
            traceback.print_exc()
            result = Result(name, 0, 0, 0, 0, 0, 0, 0, "", note=f"{type(error).__name__}: {error}")
        results.append(result)
        print(line(result), flush=True)
    runner.close()
    builder.close()
    return results


COLUMNS = (
    "| problem | trials | failed | trials/s | choice us | best us | gain | anew: choice us "
    "| best us | gain | error | of the sweep's best | configuration |"
)


def line(x: Result) -> str:
    """Return a row of the table."""
    if x.note:
        return f"| {x.name} | {x.note} |"
    cells = [
        x.name,
        str(x.trials),
        str(x.failed),
        f"{x.trials_per_second:.1f}",
        f"{x.first_us:.2f}",
        f"{x.best_us:.2f}",
        f"{x.gain:.3f}",
        _or_none(x.timed_first_us, ".2f"),
        _or_none(x.timed_best_us, ".2f"),
        _or_none(x.timed_gain, ".3f"),
        _or_none(x.error, ".1e"),
        _or_none(x.share_of_swept, ".3f") + (f" of {x.swept}" if x.swept else ""),
        x.configuration,
    ]
    return f"| {' | '.join(cells)} |"


def _or_none(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def main(argv: list[str]) -> int:
    """Run and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--problems", type=int)
    parser.add_argument("--norms", type=int)
    parser.add_argument("--sweep", type=int, default=0, help="problems with every configuration")
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fake", action="store_true", help="no GPU: times of a model")
    arguments = parser.parse_args(argv)
    given = (24, 2, 1) if arguments.quick else (64, 10, 4)
    for name, usual in zip(("trials", "problems", "norms"), given, strict=True):
        if getattr(arguments, name) is None:
            setattr(arguments, name, usual)
    print(COLUMNS)
    print("|---" * COLUMNS.count(" | ") + "|---|")
    results = run(arguments)
    if arguments.output is not None:
        said = {"machine": machine.describe(), "results": [dataclasses.asdict(x) for x in results]}
        arguments.output.write_text(json.dumps(said, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
