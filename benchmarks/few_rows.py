"""Time products of few rows: dot products and tensor cores, in turn with cuBLAS.

    python -m benchmarks.few_rows
    python -m benchmarks.few_rows --rows 1 2 4 8 --drawn 5150

Direct: warps that load what they multiply.  Weights of language models, B[n, k], and problems of
one row drawn as `benchmarks.population` draws them from a seed.  Every kernel is checked first;
data is cold, calls are replayed from graphs.  Writes a dated table.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import machine
from .gemm import RESULTS, build_library
from .matmul_case import Case, check, register
from .population import population

WEIGHTS = (
    *((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)),
    *((128256, 4096), (11008, 4096), (1024, 4096), (5120, 5120), (3000, 1000), (512, 28672)),
)
DRAWN = 600  # problems, of which those of one row are taken
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "tensor cores": {"form": "tiles"},
    "dot products": {"form": "dots"},
    "direct": {"form": "direct"},
}
MOST_DOT_ROWS = 8
COLUMNS = ["m", "n", "k", "type", "cuBLAS, us", *(f"{x}, us" for x in WAYS), "of cuBLAS", "TB/s"]


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", type=int, default=[1])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16"])
    parser.add_argument("--drawn", type=int, nargs="*", default=[], metavar="SEED")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=300, help="start no problem after this")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder")
    return parser.parse_args(argv)


def problems(options: argparse.Namespace) -> list[Case]:
    """List what is timed."""
    found = [
        Case(m, n, k, "NT", dtype, dtype)
        for m in options.rows
        for n, k in WEIGHTS
        for dtype in options.dtypes
    ]
    for seed in options.drawn:
        drawn = (x for x in population(seed, DRAWN) if x.m == 1 and x.layout == "NT")
        found += [Case(x.m, x.n, x.k, x.layout, x.dtype, x.dtype) for x in drawn]
    return list(dict.fromkeys(found))


def time_case(case: Case, paths: dict[str, str], repeats: int) -> dict[str, Any]:
    """Check all ways to compute one problem, and time them; returns a row of the table."""
    import tvm

    from .cold import time_cold

    runs = {name: tvm.runtime.load_module(path)["main"] for name, path in paths.items()}
    for run in runs.values():
        check(case, run)
    times = {name: x.median_us for name, x in time_cold(case, runs, repeats).items()}
    assert case.m is not None
    moved = 2 * (case.n * case.k + case.m * (case.n + case.k))
    return {
        "m": case.m,
        "n": case.n,
        "k": case.k,
        "type": case.dtype,
        **{name: f"{times[name]:.2f}" if name in times else "" for name in ("cublas", *WAYS)},
        "ratio": f"{times['cublas'] / times['default']:.3f}",
        "rate": f"{moved / times['default'] / 1e6:.2f}",
    }


def main(argv: list[str]) -> int:
    """Build in parallel, then check and time one problem after the other."""
    options = parse(argv)
    until = time.monotonic() + options.seconds
    cases, rows = problems(options), []
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(options.workers, context) as pool:
            built = []
            for case in cases:
                first = len(built) * len(WAYS)
                ways = {
                    name: Case(**case.as_dict() | {"config": config})
                    for name, config in WAYS.items()
                    if config.get("form") != "dots" or (case.m or 0) <= MOST_DOT_ROWS
                }
                built.append(
                    {
                        name: pool.submit(build_library, x, folder, first + i)
                        for i, (name, x) in enumerate(ways.items())
                    }
                )
            register()
            for case, jobs in zip(cases, built, strict=True):
                if time.monotonic() > until:
                    print(f"out of time before {case.name}")
                    pool.shutdown(cancel_futures=True)
                    break
                paths = {name: job.result() for name, job in jobs.items()}
                rows.append(time_case(case, paths, options.repeats))
                print(*rows[-1].values(), flush=True)
    mean = statistics.geometric_mean([float(row["ratio"]) for row in rows])
    title = f"Few rows: {mean:.3f} of cuBLAS, geometric mean of {len(rows)}"
    print(machine.save(options.output, "few_rows", title, COLUMNS, rows).splitlines()[0])
    return int(len(rows) < len(cases))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
