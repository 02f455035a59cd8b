"""Compare the simulator's register instructions with a Hopper GPU; write a dated table.

    python -m benchmarks.calibration.instructions [--only add,fma,...] [--output FOLDER]

Every modelled form of every instruction runs as the text that TVM prints for it, on special and
random operands. Some processes share the forms. Needs NVRTC and a driver (cuda-bindings), no nvcc.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine

from .forms import families
from .measure import measure, shares
from .report import is_right, table

LIMIT_S = 110
ROOT = Path(__file__).resolve().parents[3]


def measure_here(names: list[str]) -> list[dict[str, Any]]:
    """Run some instructions on the GPU of this machine; the first row describes it."""
    from ..layouts.device import Gpu
    from .device import FormsOnGpu

    gpu = Gpu()
    return [{"machine": gpu.describe()}, *measure(names, partial(FormsOnGpu, gpu))]


def measure_apart(names: list[str], limit: float = LIMIT_S) -> list[dict[str, Any]]:
    """Run some instructions in a process of their own; a fault or a hang becomes a row."""
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--here", ",".join(names)]
    started = time.monotonic()
    what = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return [{"form": what, "name": names[0], "failed": f"killed after {limit:g} s"}]
    print(f"{what}: {time.monotonic() - started:.0f} s", flush=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        end = f"exit code {done.returncode}: {last}"
        return [{"form": what, "name": names[0], "failed": end}]
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main(arguments: list[str]) -> int:
    """Run all; write `instructions_<date>.md` and `.json`; 1 if one result was not as simulated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names in TVM's table, comma between them")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "results")
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
    about = machine.describe()
    only = f" --only {options.only}" if options.only else ""
    about["command"] = f"python -m {__spec__.name.removesuffix('.__main__')}{only}"
    for row in found:
        about |= row.get("machine", {})
    rows = sorted((r for r in found if "machine" not in r), key=lambda r: known.index(r["name"]))
    stamp = about["date"][:16].replace(":", "").replace(" ", "_")
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"instructions_{stamp}.md"
    text = table(rows, about)
    path.write_text(text)
    path.with_suffix(".json").write_text(json.dumps({"machine": about, "rows": rows}, indent=1))
    print(text)
    print(f"-> {path}")
    return 0 if rows and all(is_right(row) for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
