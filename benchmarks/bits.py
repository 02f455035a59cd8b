"""Check that a row's bits do not depend on how many rows there are, and count where cuBLAS's do.

    python -m benchmarks.bits --seed 11 --count 200

Layers, layouts and types as `benchmarks.population` draws them, M symbolic, `batch_invariant=True`:
each row of the product of M rows must equal that of the largest M, bit for bit. The same is asked
of cuBLAS, and whether its bits are ours. Writes a dated table of the layers where cuBLAS differs.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import machine
from .gemm import RESULTS, build_library
from .matmul_case import Case, inputs, register
from .population import population

ROWS = (1, 2, 3, 4, 7, 8, 9, 16, 17, 33, 64, 65, 100, 128, 129, 256, 300, 512, 1000, 1024)
DRAWN = 400  # problems, of which layers are taken that differ
MOST_BYTES = 1 << 30
COLUMNS = ["N x K", "layout", "type", "ours differs at M", "cuBLAS differs at M", "not ours at M"]


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300, help="start no layer after this")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder")
    return parser.parse_args(argv)


def layers(seed: int, count: int) -> list[Case]:
    """Return different layers of a population, A as in the formula: rows of any number."""
    found = {
        (x.n, x.k, x.layout, x.dtype): None
        for x in population(seed, DRAWN)
        if x.layout[0] == "N" and 2 * x.n * x.k < MOST_BYTES
    }
    return [
        Case(None, n, k, layout, dtype, dtype, {"batch_invariant": True})
        for n, k, layout, dtype in list(found)[:count]
    ]


def compare(case: Case, run: Any) -> list[list[int]]:
    """Return the numbers of rows at which ours, cuBLAS, and one of the other differ."""
    import torch

    a, b = inputs(case, max(ROWS), "normal", 0)[:2]
    right = b.t() if case.layout[1] == "T" else b
    ours, cublas = {}, {}
    for m in ROWS:
        out = torch.full((m, case.n), float("nan"), dtype=a.dtype, device="cuda")
        left = a[:m].clone()
        run(left, b, out)
        ours[m], cublas[m] = out, torch.matmul(left, right)
    most = max(ROWS)
    return [
        [m for m in ROWS if not torch.equal(ours[m], ours[most][:m])],
        [m for m in ROWS if not torch.equal(cublas[m], cublas[most][:m])],
        [m for m in ROWS if not torch.equal(cublas[m], ours[m])],
    ]


def main(argv: list[str]) -> int:
    """Build in parallel, compare one layer after the other; 0 where ours never differ."""
    options = parse(argv)
    until = time.monotonic() + options.seconds
    cases, rows = layers(options.seed, options.count), []
    count = [0, 0, 0]
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(options.workers, context) as pool:
            jobs = [pool.submit(build_library, x, folder, i) for i, x in enumerate(cases)]
            register()
            import tvm

            done = 0
            for case, job in zip(cases, jobs, strict=True):
                if time.monotonic() > until:
                    pool.shutdown(cancel_futures=True)
                    break
                found = compare(case, tvm.runtime.load_module(job.result())["main"])
                done += 1
                count = [x + bool(y) for x, y in zip(count, found, strict=True)]
                if any(found):
                    texts = [", ".join(map(str, x)) or "none" for x in found]
                    cells = [f"{case.n} x {case.k}", case.layout, case.dtype, *texts]
                    rows.append(dict(zip(COLUMNS, cells, strict=True)))
                    print(*cells, sep=" | ", flush=True)
    title = (
        f"Bits of {done} layers at {len(ROWS)} numbers of rows from 1 to {max(ROWS)}: ours change "
        f"in {count[0]}, cuBLAS's in {count[1]}, cuBLAS's are not ours somewhere in {count[2]}"
    )
    print(machine.save(options.output, "bits", title, COLUMNS, rows).splitlines()[0])
    return int(bool(count[0]) or done < options.count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
