"""Copy kernels through each mechanism, against PyTorch: `python -m benchmarks.copies --gib 2`.

Each is a load into shared memory, a ring, and a store, checked bit for bit before it is timed. The
baseline is the faster one of `copy_` and `torch.add(x, 0, out=y)`, in the same process and in turn.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.timing import Contender, measure
from tvm_hopper.testing import copies
from tvm_hopper.testing.copies import Route

COLUMNS = 2048
TARGET = "nvidia/nvidia-h200"
BASELINES = ("copy_", "torch.add")
RESULTS = Path(__file__).parent / "results"
ROUTES = {
    "tma, tma": Route((16, 256), 16, "tma", "tma"),
    "tma, tma, wide": Route((32, 256), 16, "tma", "tma"),
    # These use slots again: stages = look-ahead + the slot in use + those of stores in flight.
    **{
        f"tma, tma, {rows} x {COLUMNS // parts}, {stages} stages, {slots} slots": Route(
            (rows, COLUMNS // parts), 16, "tma", "tma", stages, slots=slots
        )
        for rows, parts in ((1, 1), (2, 1), (4, 1), (16, 8))
        for stages, slots in ((4, 1), (4, 2), (4, 3), (6, 2), (6, 3), (8, 4))
    },
    **{
        f"bulk, bulk, {rows} rows, {stages} stages, {slots} slots": Route(
            (rows, COLUMNS), 16, "bulk", "bulk", stages, slots=slots
        )
        for rows in (1, 2, 4)
        for stages, slots in ((4, 1), (4, 2), (4, 3), (8, 4))
    },
    # Thread blocks that take the tiles in turn: those in flight at one time are neighbors.
    **{
        f"{how}, {how}, {rows} rows, {stages} stages, {blocks} blocks in turn": Route(
            (rows, COLUMNS), load=how, store=how, stages=stages, slots=slots, blocks=blocks
        )
        for how in ("tma", "bulk")
        for rows, stages, slots, blocks in (
            (1, 4, 2, 1056),
            (1, 8, 4, 528),
            (1, 16, 8, 264),
            (2, 4, 2, 528),
            (2, 8, 4, 264),
            (4, 4, 2, 264),
            (4, 8, 4, 132),
            (1, 4, 2, 2112),
        )
    },
    # As many tiles as slots: no slot is used again.
    "tma, tma, 1 x 2048, 4 steps": Route((1, COLUMNS), 4, "tma", "tma"),
    "bulk, bulk, 1 row, 4 steps": Route((1, COLUMNS), 4, "bulk", "bulk"),
    "tma, tma, 2 x 2048, 4 steps": Route((2, COLUMNS), 4, "tma", "tma"),
    "bulk, bulk, 2 rows, 4 steps": Route((2, COLUMNS), 4, "bulk", "bulk"),
    **{
        f"{how}, {how}, 1 x {columns}, {steps} steps, {stages} stages": Route(
            (1, columns), steps, how, how, stages
        )
        for how in ("tma", "bulk")
        for columns, steps, stages in (
            (COLUMNS // 2, 4, 4),
            (COLUMNS // 4, 4, 4),
            (COLUMNS // 2, 8, 4),
            (COLUMNS // 2, 8, 8),
            (COLUMNS, 2, 2),
            (COLUMNS, 3, 3),
        )
    },
    # Rows of the tensor are shorter, so that each thread block still copies contiguous bytes.
    **{
        f"{how}, {how}, row of {columns}, {steps} steps, {stages} stages": Route(
            (1, columns), steps, how, how, stages
        )
        for how in ("tma", "bulk")
        for columns, steps, stages in ((1024, 4, 4), (512, 4, 4), (512, 8, 4), (512, 8, 8))
    },
    "bulk, bulk": Route((8, COLUMNS), 4, "bulk", "bulk"),
    "bulk, bulk, one row": Route((4, COLUMNS), 8, "bulk", "bulk"),
    "bulk, bulk, no ring": Route((8, COLUMNS), 1, "bulk", "bulk", stages=None),
    "tma, vectors": Route((16, 256), 16, "tma", None),
    "cp_async, bulk": Route((4, COLUMNS), 8, "cp_async", "bulk"),
    "cp_async, vectors": Route((4, COLUMNS), 8, "cp_async", None, threads=256),
    "cp_async, vectors, 1 row, 4 steps": Route((1, COLUMNS), 4, "cp_async", None, threads=256),
    "cp_async, bulk, 1 row, 4 steps": Route((1, COLUMNS), 4, "cp_async", "bulk", threads=256),
    "vectors, tma": Route((16, 256), 16, None, "tma", stages=None, threads=256),
    **{
        f"vectors, {store}, {slots} slots": Route(
            (4, COLUMNS), 16, None, store, stages=None, threads=256, slots=slots
        )
        for store in ("tma", "bulk")
        for slots in (1, 2, 3, 4)
    },
    "vectors, vectors": Route((4, COLUMNS), 8, None, None, stages=None, threads=256),
}


def columns_of(name: str) -> int:
    """Return the length of the rows of the tensor that a route copies."""
    _, _, told = name.partition("row of ")
    return int(told.partition(",")[0]) if told else COLUMNS


def build(gib: float, routes: dict[str, Route]) -> tuple[dict[str, Any], int]:
    """Compile each route for half precision; return the kernels and the number of rows."""
    import tvm

    rows = int(gib * 2**30) // (2 * COLUMNS)
    kernels = {}
    for name, route in routes.items():
        columns = columns_of(name)
        sch = copies.schedule(copies.copy(rows * COLUMNS // columns, columns), route)
        kernels[name] = tvm.compile(sch.mod, target=TARGET)["main"]
    return kernels, rows


def _call(kernel: Any, tensors: list[Any], _number: int) -> None:
    kernel(*tensors)


def run(
    gib: float, routes: dict[str, Route], repeats: int, warmup: float = 3.0
) -> list[dict[str, Any]]:
    """Check and time each route; return a row for each."""
    import torch

    kernels, rows = build(gib, routes)
    source = torch.randint(-(2**15), 2**15, (rows, COLUMNS), dtype=torch.int16, device="cuda")
    x, y = source.view(torch.float16), torch.empty_like(source).view(torch.float16)
    right, given = {}, {}
    for name, kernel in kernels.items():
        y.view(torch.int16).fill_(0x7E7E)
        given[name] = [tensor.view(-1, columns_of(name)) for tensor in (x, y)]
        kernel(*given[name])
        torch.cuda.synchronize()
        right[name] = bool((y.view(torch.int16) == source).all())
        if not right[name]:
            print(f"{name}: wrong", file=sys.stderr)
    x.copy_(torch.ones_like(x))  # adding zero to what is no number may change its bits
    calls = {
        "copy_": lambda _: y.copy_(x),
        "torch.add": lambda _: torch.add(x, 0, out=y),
        **{name: partial(_call, kernel, given[name]) for name, kernel in kernels.items()},
    }
    runs = [
        {
            t.name: t.median_us
            for t in measure([Contender(*one) for one in calls.items()], 1, repeats, warmup)
        }
        for _ in range(3)
    ]
    best = [min(one[name] for name in BASELINES) for one in runs]
    moved = 2 * source.numel() * 2
    table = []
    for name in calls:
        ratios = sorted(b / one[name] for b, one in zip(best, runs, strict=True))
        us = sorted(one[name] for one in runs)[1]
        table.append(
            {
                "route": name,
                "right": right.get(name, True),
                "us": round(us, 1),
                "TB/s": round(moved / us / 1e6, 3),
                "ratio": round(ratios[1], 4),
            }
        )
    return table


def main(argv: list[str]) -> int:
    """Print the table and write it to `results/`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.copies", description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the tensor")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--warmup", type=float, default=3.0, help="seconds, before each of 3 runs")
    parser.add_argument("--only", nargs="+", default=[""], help="routes whose name contains one")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    routes = {
        name: route
        for name, route in ROUTES.items()
        if any(part in name for part in arguments.only)
    }
    table = run(arguments.gib, routes, arguments.repeats, arguments.warmup)
    columns = ["load, store", "right", "us", "TB/s", "of the faster PyTorch copy"]
    print(machine.save(arguments.out, "copies", f"Copies of {arguments.gib:g} GiB", columns, table))
    return 0 if all(row["right"] for row in table) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
