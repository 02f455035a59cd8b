"""Time the kernels of two checkouts against one another, in turn, in one process.

    git worktree add /tmp/old COMMIT
    python -m benchmarks.compare /tmp/old
    python -m benchmarks.compare /tmp/old --sizes 4096x4096x4096 --rounds 5

Each checkout builds its libraries in processes of its own; this one loads both. A size counts as
slower below 0.98, the set below a geometric mean of 0.995: exit code 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import machine, timing
from .gemm import RESULTS, SIZES, tensor_sets
from .matmul_case import Case, register

LEAST, LEAST_MEAN = 0.98, 0.995
BUILD = """
import json, sys
from benchmarks.gemm import build_library
from benchmarks.matmul_case import Case
for index, case in enumerate(json.loads(sys.argv[2])):
    build_library(Case(**case), sys.argv[1], index)
"""


def start_builds(checkout: Path, folder: Path, cases: list[Case], workers: int) -> list[Any]:
    """Start building every case with the package of one checkout; returns the processes."""
    folder.mkdir()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")])
    }
    parts = [list(range(i, len(cases), workers)) for i in range(min(workers, len(cases)))]
    running = []
    for part, indices in enumerate(parts):
        mine = folder / f"part{part}"
        mine.mkdir()
        text = json.dumps([cases[i].as_dict() for i in indices])
        command = [sys.executable, "-c", BUILD, str(mine), text]
        running.append((subprocess.Popen(command, cwd=checkout, env=environment), mine, indices))
    return running


def libraries(running: list[Any]) -> dict[int, Path]:
    """Wait for the builds; returns the library of each case."""
    found = {}
    for process, folder, indices in running:
        if process.wait():
            raise SystemExit(f"compare: a build in {folder} ended with {process.returncode}")
        found |= {index: folder / f"case{i}.so" for i, index in enumerate(indices)}
    return found


def ratio(case: Case, old: Path, new: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Time one case; returns old time over new time, the median of some rounds."""
    import tvm
    import tvm_ffi

    given = (("old", old), ("new", new))
    sets = tensor_sets(case)
    runs = {name: tvm.runtime.load_module(str(path))["main"] for name, path in given}
    contenders = [
        timing.Contender(name, lambda i, name=name: runs[name](*sets[i]), tvm_ffi.use_torch_stream)
        for name in runs
    ]
    rounds = []
    for turn in range(options.rounds):
        order = contenders if turn % 2 == 0 else contenders[::-1]
        found = {
            t.name: t.median_us
            for t in timing.measure(order, len(sets), options.repeats, options.warmup)
        }
        rounds.append((found["old"], found["new"]))
    ratios = [a / b for a, b in rounds]
    middle = rounds[ratios.index(statistics.median_low(ratios))]
    return {"case": case.name, "old_us": middle[0], "new_us": middle[1], "ratios": ratios}


def table(rows: list[dict[str, Any]], about: dict[str, str]) -> str:
    """Return the results as a markdown page."""
    lines = ["# Two checkouts against one another", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    lines += [
        "",
        "| case | old us | new us | old / new, median | rounds |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        rounds = ", ".join(f"{r:.3f}" for r in row["ratios"])
        lines.append(
            f"| {row['case']} | {row['old_us']:.2f} | {row['new_us']:.2f} "
            f"| **{statistics.median(row['ratios']):.3f}** | {rounds} |"
        )
    mean = geometric_mean(rows)
    lines += ["", f"Geometric mean {mean:.4f}, lowest {lowest(rows):.3f}."]
    return "\n".join(lines) + "\n"


def geometric_mean(rows: list[dict[str, Any]]) -> float:
    """Return the geometric mean of the medians."""
    logs = [math.log(statistics.median(row["ratios"])) for row in rows]
    return math.exp(sum(logs) / len(logs))


def lowest(rows: list[dict[str, Any]]) -> float:
    """Return the lowest median."""
    return min(statistics.median(row["ratios"]) for row in rows)


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="folder of the other checkout")
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="MxNxK")
    parser.add_argument("--dtypes", nargs="+", default=["float16", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds before each round")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Build both, time both; 0 when the new one is no slower."""
    options = parse(argv)
    cases = [
        Case(*map(int, size.split("x")), "NT", dtype, dtype)
        for size in options.sizes
        for dtype in options.dtypes
    ]
    here = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as folder:
        started = [
            start_builds(checkout, Path(folder, name), cases, options.workers)
            for name, checkout in (("old", options.old.resolve()), ("new", here))
        ]
        old, new = map(libraries, started)
        register()
        rows = []
        for index, case in enumerate(cases):
            rows.append(ratio(case, old[index], new[index], options))
            print(rows[-1]["case"], rows[-1]["ratios"], flush=True)
    about = machine.describe()
    machine.write(options.output, "compare", table(rows, about), {"machine": about, "rows": rows})
    print(table(rows, about))
    return int(geometric_mean(rows) < LEAST_MEAN or lowest(rows) < LEAST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
