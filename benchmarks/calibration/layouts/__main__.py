"""Compare the simulator's decoders with a Hopper GPU; write a dated table.

    python -m benchmarks.calibration.layouts [--parts f16,...,loads,stores] [--output FOLDER]

Each part is a process with a time limit. Needs NVRTC and a driver (cuda-bindings), no nvcc.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine

from .report import is_right, table

TYPES = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8")
PARTS = (*TYPES, "loads", "stores")
LIMIT_S = 100
AT_ONCE = 4
ROOT = Path(__file__).resolve().parents[3]


def measure(part: str) -> list[dict[str, Any]]:
    """Run one part on the GPU of this machine; the first row describes it."""
    from . import copies, probes, products
    from .device import Gpu, WgmmaOnGpu

    gpu = Gpu()
    rows: list[dict[str, Any]] = [{"part": "machine", **gpu.describe()}]
    if part in TYPES:
        forms = products.instructions(part)
        for major in ("k", "mn") if part in ("f16", "bf16") else ("k",):
            forms += [probes.probe_instruction(part, operand, major) for operand in probes.ROWS]
        run = WgmmaOnGpu(gpu, forms)
        return rows + probes.probe(run, part) + products.multiply(run, part)
    module = gpu.load(copies.SOURCE)
    return rows + copies.copy_all(partial(copies.on_gpu, gpu, module), part == "loads")


def measure_apart(part: str, limit: float = LIMIT_S) -> list[dict[str, Any]]:
    """Run one part in a process of its own; a fault or a hang becomes a row."""
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--one", part]
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return [{"part": "failed", "kind": part, "end": f"killed after {limit:g} s"}]
    print(f"{part}: {time.monotonic() - started:.0f} s", flush=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [{"part": "failed", "kind": part, "end": f"exit code {done.returncode}: {last}"}]
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main(arguments: list[str]) -> int:
    """Run the parts; write `layouts_<date>.md` and `.json`; 1 if a decoder was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "results")
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
    about = machine.describe()
    about["command"] = (
        f"python -m {__spec__.name.removesuffix('.__main__')} --parts {options.parts}"
    )
    for row in found:
        if row["part"] == "machine":
            about |= {name: value for name, value in row.items() if name != "part"}
    rows = [row for row in found if row["part"] != "machine"]
    stamp = about["date"][:16].replace(":", "").replace(" ", "_")
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"layouts_{stamp}.md"
    text = table(rows, about)
    path.write_text(text)
    path.with_suffix(".json").write_text(json.dumps({"machine": about, "rows": rows}, indent=1))
    print(text)
    print(f"-> {path}")
    return 0 if rows and all(is_right(row) for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
