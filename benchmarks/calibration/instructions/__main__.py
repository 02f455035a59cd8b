"""Compare the simulator's register instructions with a Hopper GPU; write a dated table.

    python -m benchmarks.calibration.instructions [--only add,fma,...] [--output FOLDER]

Every modelled form of every instruction runs as the text that TVM prints for it, on special and
random operands. Some processes share the forms. Needs NVRTC and a driver (cuda-bindings), no nvcc.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from ..apart import RESULTS, run_apart, write_table
from .forms import families
from .measure import measure, shares
from .report import is_right, table

LIMIT_S = 110


def measure_here(names: list[str]) -> list[dict[str, Any]]:
    """Run some instructions on the GPU of this machine; the first row describes it."""
    from ..layouts.device import Gpu
    from .device import FormsOnGpu

    gpu = Gpu()
    return [{"machine": gpu.describe()}, *measure(names, partial(FormsOnGpu, gpu))]


def measure_apart(names: list[str], limit: float = LIMIT_S) -> list[dict[str, Any]]:
    """Run some instructions in a process of their own; a fault or a hang becomes a row."""
    what = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    rows = run_apart(__spec__.name, ["--here", ",".join(names)], what, limit)
    return [{"form": what, "name": names[0], "failed": rows}] if isinstance(rows, str) else rows


def main(arguments: list[str]) -> int:
    """Run all; write `instructions_<date>.md` and `.json`; 1 if one result was not as simulated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names in TVM's table, comma between them")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--here", default="", help="run these here, print their rows as JSON")
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(measure_here(options.here.split(","))))
        return 0
    known = families()
    names = options.only.split(",") if options.only else known
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"--only: found {', '.join(unknown)}; need some of {', '.join(known)}")
    parts = shares(names, max(os.cpu_count() or 1, 1))
    with ThreadPoolExecutor(len(parts)) as pool:
        found = [row for rows in pool.map(measure_apart, parts) for row in rows]
    found.sort(key=lambda row: -1 if "machine" in row else known.index(row["name"]))
    only = f" --only {options.only}" if options.only else ""
    command = f"python -m {__spec__.name.removesuffix('.__main__')}{only}"
    rows = write_table("instructions", command, found, table, options.output)
    return 0 if rows and all(is_right(row) for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
