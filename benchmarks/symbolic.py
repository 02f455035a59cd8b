"""Time one build with symbolic rows against a build of its own for each number of rows.

    python -m benchmarks.symbolic
    python -m benchmarks.symbolic --layers 4096x14336 --classes 64,512,8192

For each layer, N x K: one function with M symbolic, its kernels by the model or given; for
each M a static build, and cuBLAS. Checked against float64 (see matmul_case.py), then timed in turn
in this one process, by replays of graphs on sets of tensors larger than the L2 cache. Same output
type as the input, float32 sums, normal random inputs, C = A B^T.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import math
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import machine
from .cold import time_cold
from .gemm import RESULTS
from .matmul_case import Case, build, check, register

ROWS = (1, 2, 4, 8, 16, 17, 33, 64, 100, 128, 256, 300, 512, 1000, 2048, 4096, 8192)
LAYERS = ("4096x4096", "6144x4096", "4096x14336")
COLUMNS = ["N x K", "M", "kernel for", "symbolic us", "static us", "cuBLAS us"]
COLUMNS += ["of static", "of cuBLAS"]


def build_library(case: Case, path: str) -> tuple[str, dict[int, int], float]:
    """Build a case into a library; returns its path, its ranges and the seconds of one kernel.

    The process has built another kernel before.
    """
    from tvm_hopper import schedule as hs

    build(Case(64, 64, 64, config={"tile": (64, 64, 64)}))
    ranges: dict[int, int] = {}
    if case.m is None:
        given = case.classes
        ranges = {x: x for x in given} if given else hs.choose_ranges(case.n, case.k, case.dtype)
    start = time.perf_counter()
    executable = build(case)
    seconds = time.perf_counter() - start
    executable.export_library(path)
    return path, ranges, seconds / max(1, len(set(ranges.values())))


def kernel_of(rows: int, ranges: dict[int, int]) -> int:
    """Return the rows that the kernel is chosen for which computes so many."""
    return ranges[next((x for x in ranges if rows <= x), max(ranges))]


def time_rows(case: Case, runs: dict[str, Any], options: argparse.Namespace) -> list[float]:
    """Time symbolic build, static build and cuBLAS at one M, in turn; medians in microseconds."""
    found = time_cold(case, runs, options.repeats, warmup=options.warmup)
    return [found[name].median_us for name in (*runs, "cublas")]


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean of some ratios."""
    return math.exp(sum(map(math.log, values)) / len(values))


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="+", default=LAYERS, metavar="NxK")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, metavar="M")
    parser.add_argument("--classes", help="bounds, e.g. 64,512,8192; left out, by the model")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--warmup", type=float, default=0.3, help="seconds before each M")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="build all at once; untimed")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Build in parallel, then check and time one layer after the other; 0 when all were right."""
    import tvm

    options = parse(argv)
    register()
    asked = tuple(map(int, options.classes.split(","))) if options.classes else None
    rows: list[dict[str, Any]] = []
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        # Its builds are timed, one by one.
        alone = concurrent.futures.ProcessPoolExecutor(8 if options.quick else 1, context)
        pool = concurrent.futures.ProcessPoolExecutor(options.workers, context)
        built: dict[tuple[str, int | None], tuple[Case, Any]] = {}
        for layer in options.layers:
            n, k = map(int, layer.split("x"))
            case = Case(
                None, n, k, "NT", options.dtype, options.dtype,
                sizes=tuple(options.rows), classes=asked,
            )  # fmt: skip
            path = os.path.join(folder, f"{layer}.so")
            built[layer, None] = case, alone.submit(build_library, case, path)
        for _, future in built.values() if not options.quick else ():
            future.result()
        for layer in options.layers:
            n, k = map(int, layer.split("x"))
            for m in options.rows:
                case = Case(m, n, k, "NT", options.dtype, options.dtype)
                path = os.path.join(folder, f"{layer}_{m}.so")
                built[layer, m] = case, pool.submit(build_library, case, path)
        for layer in options.layers:
            case, future = built[layer, None]
            path, ranges, seconds = future.result()
            symbolic = tvm.runtime.load_module(path)["main"]
            check(case, symbolic)
            print(f"{layer}: {ranges}", flush=True)
            if not options.quick:
                print(f"{seconds:.2f} s a kernel to build", flush=True)
            for m in options.rows:
                case, future = built[layer, m]
                try:
                    static = tvm.runtime.load_module(future.result()[0])["main"]
                    check(case, static)
                    ours, own, theirs = time_rows(
                        case, {"symbolic": symbolic, "static": static}, options
                    )
                except Exception as error:  # one bad build must not hide the others' figures
                    print(f"{layer} M={m}: {type(error).__name__}: {error}")
                    wrong += 1
                    continue
                rows.append(
                    dict(
                        zip(
                            COLUMNS,
                            (
                                layer.replace("x", " x "),
                                m,
                                kernel_of(m, ranges),
                                f"{ours:.1f}",
                                f"{own:.1f}",
                                f"{theirs:.1f}",
                                f"{own / ours:.3f}",
                                f"{theirs / ours:.3f}",
                            ),
                            strict=True,
                        )
                    )
                )
                print(*rows[-1].values(), flush=True)
        alone.shutdown()
        pool.shutdown()
    ratios = [float(row["of static"]) for row in rows]
    rows.append(
        dict.fromkeys(COLUMNS, "")
        | {
            "N x K": "geometric mean (least)",
            "of static": f"{geometric_mean(ratios):.3f} ({min(ratios):.3f})",
            "of cuBLAS": f"{geometric_mean([float(r['of cuBLAS']) for r in rows]):.3f}",
        }
    )
    title = "One build with symbolic rows against a static build for each number of rows"
    print(machine.save(options.output, "symbolic", title, COLUMNS, rows))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
