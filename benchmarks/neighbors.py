"""A stencil and a transpose through shared memory: `python -m benchmarks.neighbors`.

Each kernel loads tiles by TMA into a ring and is checked against PyTorch before it is timed. The
measure is bytes moved a second, each tensor once, as a part of what the faster one of `copy_` and
`torch.add(x, 0, out=y)` moves in the same process and in turn.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.timing import Contender, measure
from tvm_hopper.testing import neighbors, pointwise
from tvm_hopper.testing.pointwise import Tiling

TARGET = "nvidia/nvidia-h200"
BASELINES = ("copy_", "torch.add")
RESULTS = Path(__file__).parent / "results"
SIZE = 16384  # rows and columns of A
STENCILS = {
    f"{rows} x {columns}, {steps} steps, {stages} stages, {threads} threads of {vector}": Tiling(
        (rows, columns), steps, threads, vector, stages
    )
    for rows, columns, steps, stages, threads, vector in (
        (8, 128, 8, 4, 256, 2),
        (8, 128, 8, 4, 256, 1),
        (16, 128, 4, 3, 256, 2),
        (16, 128, 4, 3, 256, 1),
        (16, 248, 4, 3, 248, 2),
        (16, 248, 8, 3, 248, 1),
        (8, 248, 8, 4, 248, 2),
        (32, 128, 2, 2, 256, 2),
        (32, 248, 2, 2, 248, 2),
        (32, 248, 2, 2, 496, 2),
    )
}
TRANSPOSES = {
    f"{rows} x {columns}, {steps} steps, {stages} stages, {threads} threads of {vector}": Tiling(
        (rows, columns), steps, threads, vector, stages, swizzle=128
    )
    for rows, columns, steps, stages, threads, vector in (
        (32, 64, 4, 4, 256, 1),
        (32, 64, 4, 4, 256, 4),
        (64, 64, 2, 2, 256, 1),
        (64, 64, 2, 2, 256, 4),
        (64, 64, 4, 2, 512, 1),
        (32, 128, 4, 2, 256, 1),
        (32, 128, 4, 2, 256, 4),
        (64, 128, 2, 2, 512, 4),
        (32, 32, 4, 4, 256, 1),
        (128, 64, 1, None, 512, 4),
        (64, 64, 1, None, 256, 4),
    )
}


def build(name: str, tiling: Tiling) -> Any:
    """Schedule and compile one program; returns the kernel."""
    import tvm

    edge = 2 if name == "five_point" else 0
    mod = getattr(neighbors, name)(SIZE - edge, SIZE - edge)
    return tvm.compile(pointwise.schedule(mod, tiling).mod, target=TARGET)["main"]


def expected(name: str, x: Any) -> Any:
    """Compute a program by PyTorch."""
    if name == "transpose":
        return x.T.contiguous()
    return neighbors.stencil_of(x)


def run(
    name: str, tilings: dict[str, Tiling], repeats: int, warmup: float = 3.0
) -> list[dict[str, Any]]:
    """Check and time one program; return a row for each tiling."""
    import torch

    x = torch.randint(-64, 64, (SIZE, SIZE), device="cuda").float()  # sums are exact
    want = expected(name, x)
    out, plain = torch.empty_like(want), torch.empty_like(x)
    calls = {
        "copy_": lambda _: plain.copy_(x),
        "torch.add": lambda _: torch.add(x, 0, out=plain),
    }
    right = {}
    for label, tiling in tilings.items():
        kernel = build(name, tiling)
        out.fill_(float("nan"))
        kernel(x, out)
        torch.cuda.synchronize()
        right[label] = bool((out == want).all())
        calls[label] = lambda _, kernel=kernel: kernel(x, out)
    runs = [
        {
            t.name: t.median_us
            for t in measure([Contender(*c) for c in calls.items()], 1, repeats, warmup)
        }
        for _ in range(3)
    ]
    table = []
    for label in calls:
        moved = 2 * x.numel() * 4 if label in BASELINES else (x.numel() + want.numel()) * 4
        rates = [moved / one[label] / 1e6 for one in runs]
        best = [2 * x.numel() * 4 / min(one[b] for b in BASELINES) / 1e6 for one in runs]
        ratios = sorted(rate / top for rate, top in zip(rates, best, strict=True))
        table.append(
            {
                "program": name,
                "tiling": label,
                "right": right.get(label, True),
                "us": round(sorted(one[label] for one in runs)[1], 1),
                "TB/s": round(sorted(rates)[1], 3),
                "ratio": round(ratios[1], 4),
            }
        )
    return table


def main(argv: list[str]) -> int:
    """Print the table and write it to `results/`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbors", description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--warmup", type=float, default=3.0, help="seconds, before each of 3 runs")
    parser.add_argument("--only", nargs="+", default=[""], help="tilings whose name contains one")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    table = []
    for name, tilings in (("five_point", STENCILS), ("transpose", TRANSPOSES)):
        chosen = {
            label: tiling
            for label, tiling in tilings.items()
            if any(part in label for part in arguments.only)
        }
        table += run(name, chosen, arguments.repeats, arguments.warmup)
    columns = ["program", "tiling", "right", "us", "TB/s", "of the faster PyTorch copy"]
    title = f"A stencil and a transpose of {SIZE} x {SIZE} floats"
    print(machine.save(arguments.out, "neighbors", title, columns, table))
    return 0 if all(row["right"] for row in table) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
