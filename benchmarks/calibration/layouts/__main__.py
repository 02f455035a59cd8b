"""Compare the simulator's decoders and matrix instructions with a Hopper GPU; write a dated table.

    python -m benchmarks.calibration.layouts [--parts f16,...,loads,mma,...] [--output FOLDER]

Each part is a process with a time limit. Needs NVRTC and a driver (cuda-bindings), no nvcc.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from ..apart import RESULTS, run_apart, write_table
from .report import is_right, table

PROBED = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8")
TYPES = (*PROBED, "b1")
COPIES = ("loads", "stores")
WARP = ("mma", "mma.sp", "matrices")
PARTS = (*TYPES, *COPIES, *WARP)
LIMIT_S = 150
AT_ONCE = 4


def measure(part: str) -> list[dict[str, Any]]:
    """Run one part on the GPU of this machine; the first row describes it."""
    from . import copies, probes, products
    from .device import Gpu, WgmmaOnGpu

    gpu = Gpu()
    rows: list[dict[str, Any]] = [{"machine": gpu.describe()}]
    if part in TYPES:
        forms = products.instructions(part)
        if part in PROBED:
            for major in ("k", "mn") if part in ("f16", "bf16") else ("k",):
                forms += [probes.probe_instruction(part, x, major) for x in probes.ROWS]
        run = WgmmaOnGpu(gpu, forms)
        found = probes.probe(run, part) if part in PROBED else []
        return rows + found + products.multiply(run, part)
    if part in WARP:
        from ..warp_products.measure import measure_part

        return rows + measure_part(gpu, part)
    module = gpu.load(copies.SOURCE)
    return rows + copies.copy_all(partial(copies.on_gpu, gpu, module), part == "loads")


def measure_apart(part: str, limit: float = LIMIT_S) -> list[dict[str, Any]]:
    """Run one part in a process of its own; a fault or a hang becomes a row."""
    rows = run_apart(__spec__.name, ["--one", part], part, limit)
    return [{"part": "failed", "kind": part, "end": rows}] if isinstance(rows, str) else rows


def main(arguments: list[str]) -> int:
    """Run the parts; write `layouts_<date>.md` and `.json`; 1 if a decoder was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--one", choices=PARTS, help="run one part here, print its rows as JSON")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.one)))
        return 0
    parts = options.parts.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"--parts: found {', '.join(unknown)}; need some of {', '.join(PARTS)}")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = [row for rows in pool.map(measure_apart, parts) for row in rows]
    command = f"python -m {__spec__.name.removesuffix('.__main__')} --parts {options.parts}"
    rows = write_table("layouts", command, found, table, options.output)
    return 0 if rows and all(is_right(row) for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
