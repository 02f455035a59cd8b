"""The population timed against cuBLAS, and the distribution of the ratios as a page.

All kernels are built first, in parallel. Then each problem is checked against float64 and timed in
turn with cuBLAS in this one process, by graph replay with cold caches (`cold.py`).

    python -m benchmarks.population_table FOLDER/population_SEED_DATE.json docs/figures.md

puts the distribution and the worst problems of such a file between the two marks in a page.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .cold import time_cold
from .matmul_case import Case, build, check, register
from .population import Problem, population

WORST = 10
TILE_FIELDS = (  # which tell times of a problem apart, for the fit of the choice
    *("tile", "consumers", "stages", "wgmma_pending", "raster_group"),
    *("transposed", "split_k", "split_mode", "cluster"),
)
MARKS = "<!-- population -->\n", "<!-- end of population -->\n"
GROUPS: dict[str, Callable[[Problem], bool]] = {
    "all": lambda p: True,
    "M 1 to 16": lambda p: p.m <= 16,
    "M 17 to 64": lambda p: 16 < p.m <= 64,
    "M 65 to 512": lambda p: 64 < p.m <= 512,
    "M 513 to 4096": lambda p: 512 < p.m <= 4096,
    "M above 4096": lambda p: p.m > 4096,
    "deep K": lambda p: p.is_deep,
}


def case_of(problem: Problem) -> Case:
    """Return the case of a problem in the default configuration, with outputs of its own type."""
    return Case(problem.m, problem.n, problem.k, problem.layout, problem.dtype, problem.dtype)


def chosen_for(problem: Problem) -> tuple[str, dict[str, Any]]:
    """Return what `explain` says of the configuration by default, and the fields of its tiles."""
    from tvm_hopper.requests.targets import chip_of_target
    from tvm_hopper.schedule import MatmulConfig
    from tvm_hopper.schedule.products import dot_choice, model

    majors = ("k" if problem.layout[0] == "N" else "mn", "k" if problem.layout[1] == "T" else "mn")
    extents = problem.m, problem.n, problem.k
    wanted = model.as_product(*extents, problem.dtype, majors, problem.dtype)
    given, chip = MatmulConfig(), chip_of_target()
    best, *_ = model.rank_both(wanted, given, chip, 1)
    if dot_choice.choose_dots(wanted, given, best.microseconds, chip):
        return f"dot products: {dot_choice.estimate_dots(wanted, chip):.1f} us", {}
    config = model.choose_config(*extents, problem.dtype, majors=majors)
    fields = {name: getattr(config, name) for name in TILE_FIELDS} | {"split_k": config.split_parts}
    return str(best), {k: v for k, v in fields.items() if v not in (None, False)}


def build_library(case: Case, path: str) -> None:
    """Build a case into a shared library, for the process that times."""
    build(case).export_library(path)


def time_population(
    seed: int, count: int, workers: int | None, repeats: int, until: float
) -> Iterator[dict[str, Any]]:
    """Yield one row for each problem: its times, or a message why there are none."""
    problems = population(seed, count)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{i}.so") for i in range(count)]
        with concurrent.futures.ProcessPoolExecutor(workers, context) as pool:
            jobs = [
                pool.submit(build_library, case_of(problem), path)
                for problem, path in zip(problems, paths, strict=True)
            ]
            concurrent.futures.wait(jobs)
        register()
        for problem, path, job in zip(problems, paths, jobs, strict=True):
            if time.monotonic() > until:
                print(f"out of time before {problem.name}")
                return
            yield _row(problem, path, job.exception(), repeats)


def _row(problem: Problem, path: str, fault: Any, repeats: int) -> dict[str, Any]:
    import tvm

    row: dict[str, Any] = {"problem": dataclasses.asdict(problem)}
    case = case_of(problem)
    try:
        if fault is not None:
            raise fault
        run = tvm.runtime.load_module(path)["main"]
        row["error"] = max(check(case, run).values())
        times = time_cold(case, {"ours": run}, repeats)
        row["chosen"], row["config"] = chosen_for(problem)
    except Exception as error:  # one bad problem must not hide the others' figures
        text = str(error).strip().splitlines() or [""]
        return row | {"message": f"{type(error).__name__}: {text[-1][:300]}"}
    figures = {name: dataclasses.asdict(t) for name, t in times.items()}
    return row | figures | {"ratio": times["cublas"].median_us / times["ours"].median_us}


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table of the distribution of ratios, in all and by kind of problem."""
    lines = [
        "| problems | count | geometric mean | median | 5th percentile | least |",
        "|---|---|---|---|---|---|",
    ]
    timed = [(Problem(**row["problem"]), row["ratio"]) for row in rows if "ratio" in row]
    for name, belongs in GROUPS.items():
        ratios = sorted(ratio for problem, ratio in timed if belongs(problem))
        if not ratios:
            continue
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        figures = (mean, statistics.median(ratios), percentile(ratios, 5), ratios[0])
        lines.append(
            f"| {name} | {len(ratios)} | " + " | ".join(f"{x:.3f}" for x in figures) + " |"
        )
    return lines


def percentile(values: list[float], percent: float) -> float:
    """Return a percentile of sorted values, between two of them in proportion."""
    place = (len(values) - 1) * percent / 100
    below, above = math.floor(place), math.ceil(place)
    return values[below] + (place - below) * (values[above] - values[below])


def page(rows: list[dict[str, Any]], about: dict[str, str]) -> str:
    """Return the distribution, the worst problems and every figure as Markdown."""
    failed = [row for row in rows if "message" in row]
    timed = sorted((row for row in rows if "ratio" in row), key=lambda row: float(row["ratio"]))
    lines = ["# Matmuls drawn like users' against cuBLAS", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    lines += [
        "",
        "Ratio: time of cuBLAS by ours, default configuration, output type = input type, normal "
        "inputs; medians of graph replays with cold caches, taken in turn in one process; every "
        "output was compared with float64.",
        "",
        *summary(rows),
        "",
        f"Failed: {len(failed)}",
        *(f"- {Problem(**row['problem']).name}: {row['message']}" for row in failed),
        "",
        f"The {WORST} worst: "
        + "; ".join(f"{Problem(**r['problem']).name} {r['ratio']:.2f}" for r in timed[:WORST]),
        "",
        "| M x N x K, layout, type | ours us | cuBLAS us | ratio | error | chosen, and estimated |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {Problem(**row['problem']).name} | {row['ours']['median_us']:.2f} "
        f"| {row['cublas']['median_us']:.2f} | {row['ratio']:.3f} | {row['error']:.1e} "
        f"| {row.get('chosen', '')} |"
        for row in timed
    ]
    return "\n".join(lines) + "\n"


def section(rows: list[dict[str, Any]], link: str, about: dict[str, str]) -> str:
    """Return the distribution and the worst problems by name, for a page that links to all."""
    timed = sorted((row for row in rows if "ratio" in row), key=lambda row: float(row["ratio"]))
    worst = (f"{Problem(**row['problem']).name} {row['ratio']:.2f}" for row in timed[:WORST])
    lines = [
        f"[{len(rows)} problems]({link}), time of cuBLAS by ours; {len(rows) - len(timed)} failed",
        f"(`{about['command']}`, {about['date'][:10]}, {about['chip']}):",
        "",
        *summary(rows),
        "",
        f"The {WORST} worst:",
        ",\n".join(worst) + ".",
    ]
    return "\n".join(lines) + "\n"


def insert(page_text: str, text: str) -> str:
    """Return a page with `text` between its two marks.

    Raises
    ------
    ValueError
        The page has no marks.
    """
    before, begin, rest = page_text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not begin or not end:
        raise ValueError(f"no marks to put the population between; need {' and '.join(MARKS)}")
    return before + begin + text + end + after


def main(argv: list[str]) -> int:
    """Put the section of a population's file into a page."""
    source, target = map(Path, argv)
    content = json.loads(source.read_text())
    link = Path(os.path.relpath(source.with_suffix(".md"), target.parent)).as_posix()
    text = section(content["rows"], link, content["machine"])
    target.write_text(insert(target.read_text(), text))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
