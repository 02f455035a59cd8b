"""Tune problems of the population and norms on GPUs: trials a second, gain, how near the best.

    python -m benchmarks.tuning products --work-dir tuned     64 trials x 10 problems, timed anew
    python -m benchmarks.tuning norms --work-dir tuned        64 trials x 4 norms, timed anew
    python -m benchmarks.tuning others --work-dir tuned       gradients, columns, any rows
    python -m benchmarks.tuning rates --work-dir tuned        trials a second by GPUs in the loop
    python -m benchmarks.tuning sweeps --work-dir tuned       every configuration of three problems
    python -m benchmarks.tuning products norms rates sweeps --work-dir tuned --fake      no figures

Each goes on where an earlier run with the same folder ended, begins no more trials after --seconds,
and writes a dated table. The winner of each problem is compared with float64 on fresh inputs that
lie in poison, and timed anew in turn with the package's own choice, by graphs of torch: a search
that only picks lucky measurements shows there. The best of a sweep are timed beside the winner.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import machine, matmul_case
from .tuning_anew import build_all, build_pairs, error_of, kernel_of, time_anew
from .tuning_programs import OTHERS, Module, norms, others, products
from .tuning_rates import busy_seconds, rate_of
from .tuning_sweeps import (
    add_arguments,
    finish,
    read_sweep,
    staged,
    start,
    swept_modules,
    swept_problems,
)

BESIDE_A_SWEEP = 4  # builders
FINALISTS = 8  # of a sweep, that are timed beside the winner
RATED = ("3760x4712x64", "2792x2088x168", "3000x9104x128", "256x5120x9216", "928x784x19840")
JUDGED = 4.0  # seconds that comparing the last few of a function takes, and timing it anew


@dataclasses.dataclass
class Result:
    """One tuned problem; times in microseconds."""

    name: str
    trials: int = 0
    failed: int = 0
    stopped: str = ""
    first_us: float | None = None
    best_us: float | None = None
    configuration: str = ""
    final: dict[str, Any] = dataclasses.field(default_factory=dict)
    verdict: str = ""
    hot_us: Sequence[float] | None = None  # timed anew: of the choice and of the winner
    cold_us: Sequence[float] | None = None
    error: float | None = None
    note: str = ""


def part_of(modules: dict[str, Module], part: str) -> dict[str, Module]:
    """Return every so manyth module, from one on: "1/2" is the second of each two."""
    first, step = (int(x) for x in part.split("/"))
    return dict(list(modules.items())[first::step])


def joined(modules: dict[str, Module]) -> Any:
    """Return one module with all functions."""
    import tvm

    functions = {}
    for number, (mod, _) in enumerate(modules.values()):
        name = f"f{number:02d}"
        functions[name] = mod["main"].with_attr("global_symbol", name)
    return tvm.IRModule(functions)


def tune(modules: dict[str, Module], tools: Tools, seconds: float, **given: Any) -> Any:
    """Tune all functions in one run; return the database."""
    import tvm_hopper
    from tvm_hopper.meta_schedule.checking import no_check

    given = {"each": tools.trials, "work_dir": tools.work_dir, "runner": tools.runner, **given}
    if tools.is_fake:  # nothing compares there, and simulating takes minutes
        given.setdefault("check", no_check)
    return tvm_hopper.tune(
        joined(modules),
        matmul_case.TARGET,
        trials=given["each"] * len(modules),
        seconds=seconds,
        builder=tools.builder,
        progress=False,
        **given,
    )


@dataclasses.dataclass
class Tools:
    """What all parts share."""

    work_dir: Path
    trials: int
    is_fake: bool
    end: float
    workers: int | None = None
    builder: Any = None
    runner: Any = None

    def open(self) -> None:
        """Start a builder and a runner on all GPUs."""
        from tvm_hopper import meta_schedule as hms

        matmul_case.register()
        self.builder = hms.ArtifactBuilder(self.workers)
        self.runner = hms.fake_gpus(2) if self.is_fake else hms.GpuRunner()
        self.builder.start()
        if not self.is_fake:
            self.runner.start()

    def close(self) -> None:
        """Stop both."""
        for tool in (self.runner, self.builder):
            if tool is not None:
                tool.close()

    @property
    def count(self) -> int:
        """GPUs that measure."""
        from tvm_hopper.meta_schedule.runner import visible_gpus

        return 2 if self.is_fake else len(visible_gpus())

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.end - time.monotonic()


def tuned(modules: dict[str, Module], tools: Tools, kept: float = 0.0) -> list[Result]:
    """Tune, and time the winners anew; what fails does not end the others.

    The search ends so early that seconds are left for the rest, and `kept` seconds for what comes
    behind it.
    """
    from tvm_hopper.meta_schedule.tasks import find_tasks

    begin = time.monotonic()
    reserve = 5 + JUDGED * len(modules) + kept
    database = tune(modules, tools, max(5.0, tools.left - reserve))
    print(f"searched and compared in {time.monotonic() - begin:.1f} s", flush=True)
    results, found = [], []
    for name, (mod, product) in modules.items():
        (task,) = find_tasks(mod, matmul_case.TARGET)
        result = Result(name)
        winner = _summarise(result, database, task.problem)
        results.append(result)
        if winner is not None:
            found.append((result, winner, task.problem, product))
    paths = [] if tools.is_fake else build_pairs(tools.builder, found)
    for row, pair in zip(found, paths, strict=False):
        if tools.left < 8:
            row[0].note = "no time was left to time it anew"
        elif not _anew(*row, tools.work_dir, pair):
            _anew(*row, tools.work_dir, [None, None])
        print(line(row[0]), flush=True)
    return results


def _anew(
    result: Result, winner: Any, problem: Any, product: Any, folder: Path, paths: list[str | None]
) -> bool:
    """Compare a winner with float64, and time it beside the package's choice; once for each.

    Return whether that could be done; what is wrong is noted, and does not end the others.
    """
    path = folder / f"anew_{problem.key}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    try:
        if known.get("winner") != winner.text:
            configs = (problem.built_in(), winner.config)
            kernels = [kernel_of(x, problem, y) for x, y in zip(paths, configs, strict=True)]
            known = {"winner": winner.text, "error": None}
            if product is not None:
                known["error"] = error_of(product, winner.config, kernels[1])
            known["hot_us"], known["cold_us"] = time_anew(problem, kernels)
            path.write_text(json.dumps(known))
    except Exception as error:
        traceback.print_exc()
        result.note = f"{type(error).__name__}: {error}"[:200]
        return isinstance(error, AssertionError)
    result.note, result.error = "", known["error"]
    result.hot_us, result.cold_us = known["hot_us"], known["cold_us"]
    return True


def _summarise(result: Result, database: Any, problem: Any) -> Any:
    made = database.trials(problem.key)
    winner = database.winner(problem.key)
    first = next((x for x in made if x.config == problem.built_in()), None)
    result.trials = len(made)
    result.failed = sum(x.seconds is None for x in made)
    result.stopped = database.ended(problem.key)
    result.first_us = first.seconds * 1e6 if first is not None and first.seconds else None
    result.final = database.finals.get(problem.key, {})
    if winner is None:
        result.note = "no winner"
        return None
    result.best_us, result.configuration = winner.seconds * 1e6, winner.text
    result.verdict = database.verdict(problem.key, winner)
    return winner


def rates(tools: Tools) -> list[dict[str, Any]]:
    """Return trials a second of the same search with one GPU, and with all."""
    from tvm_hopper import meta_schedule as hms
    from tvm_hopper.meta_schedule.checking import no_check
    from tvm_hopper.meta_schedule.runner import visible_gpus

    gpus = ["0", "1"] if tools.is_fake else visible_gpus()
    found = []
    for count in sorted({1, len(gpus)}):
        folder = tools.work_dir.with_name(f"{tools.work_dir.name}_rate_{count}_{int(time.time())}")
        runner = hms.fake_gpus(count) if tools.is_fake else hms.GpuRunner(gpus[:count])
        runner.contest = None  # it is the search that is timed, not what comes after it
        try:
            each = 4 if tools.is_fake else 32
            given = {"runner": runner, "work_dir": folder, "check": no_check, "each": each}
            chosen = {k: v for k, v in products(10).items() if k.split(" ")[0] in RATED}
            before, began = busy_seconds(), time.monotonic()
            tune(chosen, tools, max(5.0, min(40.0, tools.left)), **given)
            took = time.monotonic() - began
            busy = {k: round((v - before.get(k, 0)) / took, 2) for k, v in busy_seconds().items()}
        finally:
            runner.close()
        found.append({"asked_for": count, **rate_of(folder), "processors_busy": busy})
        print(found[-1], flush=True)
    return found


# -- sweeps


def sweeps(arguments: argparse.Namespace, tools: Tools, running: list[Any]) -> list[dict[str, Any]]:
    """Let problems be swept on all GPUs, and time the best beside the winner."""
    from tvm_hopper import meta_schedule as hms
    from tvm_hopper.errors import HopperError

    problems = swept_problems(arguments)
    try:
        database = hms.Database(tools.work_dir)
    except HopperError:
        database = None
    if database is None or any(database.winner(x.key) is None for x in problems.values()):
        seconds = max(5.0, min(60.0, tools.left - arguments.sweeping))
        database = tune(swept_modules(arguments), tools, seconds)
    begin = time.monotonic()
    finish(running, tools.work_dir, tools.left - arguments.reserve)
    print(f"swept in {time.monotonic() - begin:.1f} s", flush=True)
    found = []
    for name, problem in problems.items():
        try:
            found.append({"name": name, **_judged(problem, database, tools, arguments)})
        except Exception as error:
            traceback.print_exc()
            found.append({"name": name, "note": f"{type(error).__name__}: {error}"[:200]})
        print(found[-1], flush=True)
    return found


def _judged(
    problem: Any, database: Any, tools: Tools, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Time the best of a sweep beside the winner, in turn on one GPU."""
    from tvm_hopper.meta_schedule.configurations import as_text, from_text

    stages = staged(problem, arguments.near)
    space, near = {as_text(x) for stage in stages for x in stage}, {as_text(x) for x in stages[0]}
    known = {k: v for k, v in read_sweep(tools.work_dir, problem).items() if k in space}
    timed = sorted((s, text) for text, s in known.items() if s is not None)
    winner = database.winner(problem.key)
    best = [text for _, text in timed if text != winner.text][: arguments.finalists]
    configs = [winner.config, problem.built_in(), *map(from_text, best)]
    result = tools.runner.contest(build_all(tools.builder, problem, configs))()
    assert not isinstance(result, str), result
    ours = statistics.median(result.sustained[0])
    times = [statistics.median(x) for x in result.sustained]
    alone = [statistics.median(x) for x in result.single]
    return {
        "configurations": len(space),
        "known": len(known),
        "ran": len(timed),
        "is_whole": len(known) == len(space),
        "near": len(near),
        "near_known": len(near & set(known)),
        "winner": winner.text,
        "winner_us": 1e6 * ours,
        "choice_us": 1e6 * times[1],
        "best_us": 1e6 * min(times),
        "share": min(times) / ours,
        "share_single": min(alone) / alone[0],
        "timed": len(configs),
        "share_in_search": timed[0][0] / winner.seconds if timed else None,
        "best": [winner.text, "built-in", *best][times.index(min(times))],
        "worker": result.worker,
    }


# -- tables

COLUMNS = (
    "| problem | trials | failed | choice us | best us | in the finals | certain "
    "| anew, full load: choice us | tuned us | gain | without pauses: gain | of cuBLAS | error "
    "| checked | on | configuration |"
)


def line(x: Result) -> str:
    """Return a row of the table."""
    if x.note and not x.best_us:
        return f"| {x.name} | {x.note} |"
    final = x.final
    library = final.get("library_us")
    ours = dict(zip(final.get("finalists", []), final.get("sustained_us") or [], strict=False))
    own = ours.get(x.configuration)
    certain = "-".join(f"{v:.3f}" for v in final.get("certain", [])) or "-"
    cells = [
        x.name,
        str(x.trials) if x.stopped in ("", f"{x.trials} trials") else f"{x.trials}, {x.stopped}",
        str(x.failed),
        _number(x.first_us, ".2f"),
        _number(x.best_us, ".2f"),
        _number(final.get("gain"), ".3f"),
        certain,
        _number(x.hot_us[0] if x.hot_us else None, ".2f"),
        _number(x.hot_us[1] if x.hot_us else None, ".2f"),
        _number(x.hot_us[0] / x.hot_us[1] if x.hot_us else None, ".3f"),
        _number(x.cold_us[0] / x.cold_us[1] if x.cold_us else None, ".3f"),
        _number(library / own if library and own else None, ".3f"),
        _number(x.error, ".1e"),
        x.verdict or "-",
        str(final.get("worker", "-")),
        x.configuration + (f" ({x.note})" if x.note else "") + (final.get("why") or ""),
    ]
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def table(said: dict[str, Any], results: list[Result]) -> str:
    """Return what was found as text."""
    lines = [f"# Tuning: {' '.join(said['parts'])}", "", f"`{said['command']}`", ""]
    lines += [str(said["machine"]), ""]
    if said["is_fake"]:
        lines += ["FAKE: nothing was measured.", ""]
    if results:
        lines += [COLUMNS, "|---" * (COLUMNS.count(" |")) + "|", *map(line, results), ""]
        gains = [x.hot_us[0] / x.hot_us[1] for x in results if x.hot_us]
        if gains:
            lines += [f"Least gain anew {min(gains):.3f}, {len(gains)} problems.", ""]
    for row in (*said["rates"], *said["sweeps"]):
        lines += ["- " + ", ".join(f"{k} {v}" for k, v in row.items())]
    return "\n".join(lines) + "\n"


MODULES: dict[str, Callable[[argparse.Namespace], dict[str, Module]]] = {
    "products": lambda given: products(given.problems),
    "norms": lambda given: norms(given.norms),
    "others": lambda given: others(len(OTHERS)),
}
PARTS = (*MODULES, "rates", "sweeps")


def main(argv: list[str]) -> int:
    """Run and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    add_arguments(parser)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--norms", type=int, default=4)
    parser.add_argument("--only", nargs="+", help="functions, by their names up to a space")
    parser.add_argument("--part", default="0/1", help="of the functions: 0/2 and 1/2 side by side")
    parser.add_argument("--reserve", type=float, default=30.0, help="of a sweep, for its end")
    parser.add_argument("--finalists", type=int, default=FINALISTS, help="of a sweep, timed anew")
    parser.add_argument("--sweeping", type=float, default=90.0, help="seconds that sweeps get")
    arguments = parser.parse_args(argv)
    end = time.monotonic() + arguments.seconds
    workers = arguments.workers
    if arguments.parts == ["sweeps"]:  # which build by themselves: these build the last few
        most = max(BESIDE_A_SWEEP, arguments.finalists // BESIDE_A_SWEEP)
        workers = min(workers or most, most)
    tools = Tools(arguments.work_dir, arguments.trials, arguments.fake, end, workers)
    tools.open()
    running: list[Any] = []
    if "sweeps" in arguments.parts:
        running = start(arguments, tools.left - arguments.reserve, tools.count)
    results: list[Result] = []
    said: dict[str, Any] = {
        "command": f"python -m benchmarks.tuning {' '.join(argv)}",
        "parts": arguments.parts,
        "is_fake": arguments.fake,
        "rates": [],
        "sweeps": [],
    }
    stamp = time.strftime("%Y-%m-%d_%H%M%S")
    name = [*arguments.parts, *([] if arguments.part == "0/1" else [arguments.part[0]])]
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / f"tuning_{'_'.join(name)}_{stamp}"
    print(COLUMNS)
    try:
        wanted: dict[str, Module] = {}  # one run: what waits for one function works on another
        for part in (x for x in arguments.parts if x in MODULES):
            wanted |= part_of(MODULES[part](arguments), arguments.part)
        if arguments.only:
            wanted = {k: x for k, x in wanted.items() if k.split(" ")[0] in arguments.only}
        left = [x for x in ("rates", "sweeps") if x in arguments.parts]
        for part in ["functions", *left] if wanted else left:
            if part == "functions":
                kept = arguments.sweeping if running else 0.0
                results = tuned(wanted, tools, kept)
                said["rates"] = [rate_of(tools.work_dir)]
            elif part == "rates":
                said["rates"] += rates(tools)
            else:
                said["sweeps"] = sweeps(arguments, tools, running)
            said["machine"] = machine.describe()
            said["results"] = [dataclasses.asdict(x) for x in results]
            path.with_suffix(".json").write_text(json.dumps(said, indent=1, default=str))
            path.with_suffix(".md").write_text(table(said, results))
    finally:
        for process in running:
            process.kill()
        tools.close()
    print(f"wrote {path}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
