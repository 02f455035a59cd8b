"""Time kernels of symbolic rows, each at many numbers of rows: what a choice among them rests on.

    python -m benchmarks.row_matrix --layers 4096x4096 1536x8960
    python -m benchmarks.row_matrix --layers 3072x3072 --kinds many --near 1.2

For each layer, N x K: the kernels of `ranges.RUNGS` that come near the best estimate at one of the
row counts, built for any number of rows, as thread blocks that share out all tiles
("many") and, where their tiles fit the chip at once, as one block a tile ("alone"); beside them a
static build for each number of rows, and cuBLAS. Every kernel is compared with cuBLAS's result.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import machine, timing
from .cold import LONG_BYTES, SHORT_CALLS, tensor_sets
from .gemm import RESULTS
from .matmul_case import TARGET, Case, register
from .symbolic import ROWS

NEAR = 1.12  # of the least estimate: kernels that are timed
FAR = 1.4  # beyond that they are not timed at a number of rows
KINDS = ("many", "alone")
COLUMNS = ["N x K", "M", "cuBLAS us", "static us", "kernels us"]


def build_one(kind: str, n: int, k: int, rows: int, path: str) -> str:
    """Build a kernel into a library; returns its path."""
    import tvm
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.testing import workloads

    register()
    extent = rows if kind == "static" else "m"
    sch = s_tir.Schedule(workloads.matmul(extent, n, k, "NT", "float16", "float16"))
    if kind == "static":
        hs.matmul(sch, "C")
    else:
        config = hs.MatmulConfig(cluster=(1, 1), persistent=0 if kind == "alone" else None)
        hs.matmul(sch, "C", config, classes={8192: rows})
    tvm.compile(sch.mod, target=TARGET).export_library(path)
    return path


def worth_timing(
    n: int,
    k: int,
    rows: tuple[int, ...],
    near: float = NEAR,
    far: float = FAR,
    kinds: Sequence[str] = KINDS,
) -> list[tuple[str, int, list[int]]]:
    """Return kernels by their kind and the rows they are for, and where they are timed."""
    from tvm_hopper.schedule.products.class_choice import AnyRows
    from tvm_hopper.schedule.products.ranges import RUNGS

    asked = AnyRows.of("row_matrix", n, k, "float16", None, ("k", "k"), None)
    configs = asked.choose(RUNGS)
    times = asked.estimate(rows, configs)
    times = times / times.min(axis=1, keepdims=True)
    found, seen = [], set()
    for i, (rung, config) in enumerate(zip(RUNGS, configs, strict=True)):
        key = (config.tile, config.consumers, config.transposed, config.split_k)
        if key in seen or (times[:, i] > near).all():
            continue
        seen.add(key)
        there = [m for m, time in zip(rows, times[:, i], strict=True) if time <= far]
        if "many" in kinds:
            found.append(("many", rung, there))
        height, width = config.tile[:2][:: -1 if config.transposed else 1]
        at_once = [m for m in there if -(-m // height) * -(-n // width) <= asked.chip.num_sms]
        if config.parts == 1 and at_once and "alone" in kinds:
            found.append(("alone", rung, at_once))
    return found


def time_all(case: Case, runs: dict[str, Any], repeats: int) -> dict[str, float]:
    """Time all kernels of one product in turn, in microseconds; what is wrong is left out."""
    import torch
    import tvm_ffi

    sets = tensor_sets(case)
    a, b, out = sets[0]
    want = torch.matmul(a, b.t()).float()

    def contender(name: str, run: Any) -> timing.Contender:
        return timing.Contender(name, lambda i: run(*sets[i]), tvm_ffi.use_torch_stream)

    contenders = [
        timing.Contender(
            "cublas", lambda i: torch.matmul(sets[i][0], sets[i][1].t(), out=sets[i][2])
        )
    ]
    for name, run in runs.items():
        out.fill_(float("nan"))
        with tvm_ffi.use_torch_stream():
            run(a, b, out)
        error = float((out.float() - want).norm() / want.norm())
        if not error < 2e-3:
            print(f"{case.name} {name}: found relative error {error:.1e}; need below 2e-3")
            continue
        contenders.append(contender(name, run))
    small = 2 * (case.m * case.k + case.n * case.k + case.m * case.n) < LONG_BYTES  # type: ignore[operator]
    found = timing.measure_cold(contenders, len(sets), repeats, SHORT_CALLS if small else 0)
    return {x.name: round(x.median_us, 2) for x in found}


def main(argv: list[str]) -> int:
    """Build in parallel and time one layer after the other."""
    import tvm

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="+", default=("4096x4096",), metavar="NxK")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, metavar="M")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    near = "of the least estimate: kernels that are timed"
    parser.add_argument("--near", type=float, default=NEAR, help=near)
    far = "of the least estimate at a number of rows: beyond that they are not timed there"
    parser.add_argument("--far", type=float, default=FAR, help=far)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder")
    options = parser.parse_args(argv)
    rows = tuple(options.rows)
    table = []
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ProcessPoolExecutor(options.workers, context) as pool,
    ):
        building: dict[str, list[tuple[str, int, list[int], Any]]] = {}
        for layer in options.layers:
            n, k = map(int, layer.split("x"))
            wanted = [("static", m, [m]) for m in rows] + worth_timing(
                n, k, rows, options.near, options.far, options.kinds
            )
            building[layer] = [
                (
                    kind,
                    x,
                    at,
                    pool.submit(build_one, kind, n, k, x, f"{folder}/{layer}_{kind}{x}.so"),
                )
                for kind, x, at in wanted
            ]
        for layer, kernels in building.items():
            n, k = map(int, layer.split("x"))
            built = [
                (f"{kind}:{x}", at, tvm.runtime.load_module(path.result())["main"])
                for kind, x, at, path in kernels
            ]
            for m in rows:
                runs = {name: run for name, at, run in built if m in at}
                times = time_all(Case(m, n, k, "NT", "float16", "float16"), runs, options.repeats)
                cublas, own = times.pop("cublas"), times.pop(f"static:{m}", "")
                others = ", ".join(f"{x} {t}" for x, t in sorted(times.items(), key=lambda x: x[1]))
                row = (layer.replace("x", " x "), m, cublas, own, others)
                table.append(dict(zip(COLUMNS, row, strict=True)))
                print(*row, flush=True)
    title = "Kernels of symbolic rows, each at many numbers of rows"
    machine.save(options.output, "row_matrix", title, COLUMNS, table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
