"""Check and time products whose sum several thread blocks share, against cuBLAS in one process.

    python -m benchmarks.split_k
    python -m benchmarks.split_k --sizes 88x184x29440

Deep sums with few output tiles, each with several tiles and numbers of parts; built, checked and
timed as by `benchmarks.gemm`.  Writes a dated table.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from . import machine
from .gemm import RESULTS, run_problems, save, table
from .matmul_case import Case

Tile = tuple[int, int, int]
# For each problem its tiles, with the numbers of parts that may fill the chip; 1 is no split.
TILES: dict[str, dict[Tile, tuple[int, ...]]] = {
    "88x184x29440": {
        (64, 24, 128): (1, 4, 5, 6, 7),
        (64, 24, 256): (6,),
        (64, 32, 128): (4, 6, 7, 8),
        (64, 48, 128): (4, 7, 8),
        (64, 48, 256): (8,),
    },
    "64x7168x18432": {
        (64, 96, 128): (1,),
        (64, 128, 128): (1, 2),
        (64, 192, 64): (3,),
        (64, 224, 64): (2, 3, 4),
        (64, 256, 64): (3, 4),
    },
    "128x256x16384": {
        (64, 32, 128): (1, 4, 5, 6),
        (64, 64, 128): (4, 6, 7, 8),
        (64, 64, 256): (8,),
        (128, 64, 128): (8,),
    },
    "512x512x8192": {
        (128, 64, 128): (1, 2, 3, 4),
        (128, 128, 64): (1, 2, 4, 5, 6, 7),
        (128, 128, 128): (4, 6),
        (128, 256, 64): (4, 8),
    },
    "1000x1000x20000": {
        (128, 128, 64): (1, 2),
        (128, 192, 64): (2,),
        (192, 128, 64): (2,),
        (192, 192, 64): (2, 3),
        (128, 256, 64): (2, 3, 4),
        (256, 128, 64): (3,),
    },
}


def variants(size: str) -> list[dict[str, Any]]:
    """Return the configurations of one problem: the default, then tiles and parts."""
    found: list[dict[str, Any]] = [{}]
    for tile, splits in TILES[size].items():
        for parts in splits:
            found.append({"tile": tile} if parts == 1 else {"tile": tile, "split_k": parts})
    return found


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=list(TILES), choices=TILES, metavar="MxNxK")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds before each problem")
    parser.add_argument("--minutes", type=float, default=9.0, help="start no problem after this")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Build in parallel, then check and time one problem after the other; 0 when all were right."""
    options = parse(argv)
    until = time.monotonic() + 60 * options.minutes
    problems = [
        [
            Case(*map(int, size.split("x")), "NT", dtype, dtype, variant)
            for variant in variants(size)
        ]
        for size in options.sizes
        for dtype in options.dtypes
    ]
    rows = run_problems(problems, options, until)
    about = machine.describe()
    save(options.output, "split_k", table(rows, about), {"machine": about, "rows": rows})
    return int(len(rows) < sum(map(len, problems)) or any("message" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
