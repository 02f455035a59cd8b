"""Check and time the lowered matmul against cuBLAS, and write a dated table.

    python -m benchmarks.gemm
    python -m benchmarks.gemm --sizes 4096x4096x4096 --variant "" --variant tile=128x128x64,stages=4
    python -m benchmarks.gemm --sizes 8192x8192x8192 --layouts NT NN TN TT
    python -m benchmarks.gemm --population 7 60         problems drawn like users', from a seed

Each size and type: built, checked (see matmul_case.py), then timed in turn with torch.matmul(out=)
in this one process. Same output type as the input, float32 sums, normal random inputs. A layout
says of A and of B whether rows lie as in C = A B ("N"). The first variant, an empty text, is the
default configuration.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import machine, population_table
from .cold import time_cold
from .matmul_case import Case, build, check, inputs, register

SIZES = (
    "4096x4096x4096",
    "8192x8192x8192",
    "2048x2048x2048",
    "1024x1024x1024",
    "4096x14336x4096",
    "512x4096x14336",
    "64x4096x8192",
    "4096x4096x256",
)
CACHE_BYTES = 60 << 20  # of an H200's L2; sets of tensors are rotated beyond twice that
MAX_SETS = 16
RESULTS = Path(__file__).parent / "results"


def read_variant(text: str) -> dict[str, Any]:
    """Return the fields of a MatmulConfig from "store=tma,tile=128x256x64"."""
    fields: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, value = part.split("=")
        if not value.replace("x", "").isdigit():
            fields[name] = value
            continue
        numbers = tuple(int(v) for v in value.split("x"))
        fields[name] = numbers if len(numbers) > 1 else numbers[0]
    return fields


def build_library(case: Case, folder: str, index: int) -> str:
    """Build a case into a shared library, for the process that times; returns the path."""
    path = os.path.join(folder, f"case{index}.so")
    build(case).export_library(path)
    return path


def tensor_sets(case: Case) -> list[tuple[Any, Any, Any]]:
    """Return sets of (A, B, C) that together are larger than the cache."""
    import torch

    elements = case.m * case.k + case.n * case.k + case.m * case.n
    count = min(max(2, -(-2 * CACHE_BYTES // (2 * elements))), MAX_SETS)
    shape = (case.m, case.n)
    made = []
    for seed in range(count):
        a, b = inputs(case, case.m, "normal", seed)[:2]
        out = torch.empty(shape, dtype=getattr(torch, case.dtype), device="cuda")
        made.append((a, b, out))
    return made


def compare(cases: list[Case], runs: list[Any], options: argparse.Namespace) -> list[dict]:
    """Time all variants of one problem in turn with cuBLAS; returns one row a variant."""
    named = {case.name: run for case, run in zip(cases, runs, strict=True)}
    found = time_cold(cases[0], named, options.repeats, warmup=options.warmup)
    times = [found[name] for name in ("cublas", *named)]
    work = 2 * cases[0].m * cases[0].n * cases[0].k
    rate = lambda t: work / t.median_us / 1e6  # noqa: E731  TFLOP/s
    return [
        {
            "size": f"{case.m}x{case.n}x{case.k}",
            "layout": case.layout,
            "dtype": case.dtype,
            "config": case.config,
            "ours": dataclasses.asdict(t),
            "cublas": dataclasses.asdict(times[0]),
            "ours_tflops": rate(t),
            "cublas_tflops": rate(times[0]),
            "ratio": times[0].median_us / t.median_us,
        }
        for case, t in zip(cases, times[1:], strict=True)
    ]


def table(rows: list[dict], about: dict[str, str]) -> str:
    """Return the results as a markdown page."""
    lines = ["# Matmul against cuBLAS", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    lines += [
        "",
        "C[M, N] = A B; NT: A[M, K] and B[N, K]; output type = input type; normal random inputs; "
        "medians of times taken in turn in one process, by replays of graphs; each call has "
        "tensors of its own, together larger than twice the L2 cache.",
        "",
        "| M x N x K | layout | type | configuration | ours us (p10-p90) | TFLOP/s | cuBLAS us "
        "| TFLOP/s | ours / cuBLAS speed | timed by | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *body(rows),
    ]
    if found := means(rows):
        lines += ["", *found]
    return "\n".join(lines) + "\n"


def body(rows: list[dict]) -> list[str]:
    """Return the lines of the table."""
    lines = []
    for row in rows:
        shape = f"{row['size'].replace('x', ' x ')} | {row['layout']}"
        config = ", ".join(f"{k}={v}" for k, v in row["config"].items()) or "default"
        if "message" in row:
            lines.append(f"| {shape} | {row['dtype']} | {config} | {row['message']} |||||||")
            continue
        ours, base = row["ours"], row["cublas"]
        lines.append(
            f"| {shape} | {row['dtype']} | {config} "
            f"| {ours['median_us']:.1f} ({ours['p10_us']:.1f}-{ours['p90_us']:.1f}) "
            f"| {row['ours_tflops']:.0f} | {base['median_us']:.1f} | {row['cublas_tflops']:.0f} "
            f"| **{row['ratio']:.3f}** | {ours['method']} | {row['error']:.1e} |"
        )
    return lines


def means(rows: list[dict]) -> list[str]:
    """Return a line for each size whose default was timed several times: its mean ratio."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if not row["config"] and "ratio" in row:
            found.setdefault(row["size"], []).append(row["ratio"])
    return [
        f"{size}: geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.3f}, least "
        f"{min(ratios):.3f} of {len(ratios)}"
        for size, ratios in found.items()
        if len(ratios) > 1
    ]


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="MxNxK")
    parser.add_argument("--dtypes", nargs="+", default=["float16", "bfloat16"])
    parser.add_argument("--layouts", nargs="+", default=["NT"], choices=["NT", "NN", "TN", "TT"])
    parser.add_argument(
        "--population",
        nargs=2,
        type=int,
        metavar=("SEED", "COUNT"),
        help="problems drawn like users' in place of --sizes",
    )
    parser.add_argument("--variant", action="append", help="e.g. tile=128x256x64,stages=4")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--warmup", type=float, default=3.0, help="seconds before each problem")
    parser.add_argument("--minutes", type=float, default=9.0, help="start no problem after this")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder")
    options = parser.parse_args(argv)
    if options.repeats < 50:
        parser.error("--repeats: a median of fewer than 50 is no figure")
    return options


def main(argv: list[str]) -> int:
    """Build in parallel, then check and time one problem after the other; 0 when all were right."""
    options = parse(argv)
    until = time.monotonic() + 60 * options.minutes
    if options.population:
        return run_population(options, until)
    variants = [read_variant(text) for text in options.variant or [""]]
    problems = [
        [Case(*map(int, size.split("x")), layout, dtype, dtype, v) for v in variants]
        for size in options.sizes
        for dtype in options.dtypes
        for layout in options.layouts
    ]
    rows = run_problems(problems, options, until)
    about = machine.describe()
    print(table(rows, about))
    save(options.output, "gemm", table(rows, about), {"machine": about, "rows": rows})
    return int(len(rows) < sum(map(len, problems)) or any("message" in row for row in rows))


def run_problems(
    problems: list[list[Case]], options: argparse.Namespace, until: float
) -> list[dict[str, Any]]:
    """Build all cases in parallel, then check and time one problem after the other."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        flat = [case for cases in problems for case in cases]
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(options.workers, context) as pool:
            built = {
                id(case): pool.submit(build_library, case, folder, i) for i, case in enumerate(flat)
            }
            register()
            for cases in problems:
                if time.monotonic() > until:
                    print(f"out of time before {cases[0].name}")
                    break
                rows += run_problem(cases, [built[id(c)] for c in cases], options)
                print(*body(rows[-len(cases) :]), sep="\n", flush=True)
    return rows


def run_population(options: argparse.Namespace, until: float) -> int:
    """Time problems drawn from a seed in the default configuration; 0 when all were right."""
    seed, count = options.population
    rows = []
    for row in population_table.time_population(seed, count, options.workers, 11, until):
        rows.append(row)
        figure = row.get("message") or f"{row['ours']['median_us']:.2f} us, {row['ratio']:.3f}"
        print(*row["problem"].values(), figure, flush=True)
    about = machine.describe()
    text = population_table.page(rows, about)
    save(options.output, f"population_{seed}", text, {"machine": about, "rows": rows})
    print(*population_table.summary(rows), sep="\n")
    return int(len(rows) < count or any("message" in row for row in rows))


def save(folder: Path, name: str, text: str, values: dict[str, Any]) -> None:
    """Write a page and the figures behind it, dated."""
    print(f"-> {machine.write(folder, name, text, values)}")


def run_problem(cases: list[Case], built: list[Any], options: argparse.Namespace) -> list[dict]:
    """Check every variant of one problem and time those that are right."""
    import tvm

    rows, good, runs, errors = [], [], [], []
    for case, future in zip(cases, built, strict=True):
        try:
            run = tvm.runtime.load_module(future.result())["main"]
            errors.append(max(check(case, run).values()))
        except Exception as error:  # one bad variant must not hide the others' figures
            head = {
                "size": f"{case.m}x{case.n}x{case.k}",
                "layout": case.layout,
                "dtype": case.dtype,
            }
            text = f"{type(error).__name__}: {str(error).splitlines()[-1][:300]}"
            rows.append(head | {"config": case.config, "message": text})
            continue
        good.append(case)
        runs.append(run)
    if good:
        timed = compare(good, runs, options)
        rows += [row | {"error": e} for row, e in zip(timed, errors, strict=True)]
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
