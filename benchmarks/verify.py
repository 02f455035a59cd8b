"""How long `verify` takes, and how much memory, each time in a fresh process.

    python -m benchmarks.verify
    python -m benchmarks.verify --rounds 1 --cases "matmul 4096"
    python -m benchmarks.verify --static

Needs no GPU. Prints medians. The goals on two cores are 3 s for the product of 4096, 10 s with its
values, 6 s and 15 s for that of 8192, 60 s for the layer norm, and 700 MB for each. The static
check, which every build runs, may take 50 ms or a tenth of the build; both are CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import describe, write

RESULTS = Path(__file__).parent / "results"
TARGET = "nvidia/nvidia-h200"
FIELDS = ("seconds", "cpu_seconds", "peak_mb", "static_ms", "build_ms")
STATIC_ROUNDS = 5


def matmul(m: int, n: int, k: int) -> tuple[Any, Any]:
    """Return the default schedule of a product of fp16, and the plain product."""
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.testing import workloads

    plain = workloads.matmul(m, n, k)
    sch = s_tir.Schedule(plain)
    hs.matmul(sch, "C")
    return sch.mod, plain


def pointwise(rows: int, columns: int) -> tuple[Any, Any]:
    """Return exp(A) + B through a ring of tiles, and the plain loops."""
    from tvm_hopper.testing import pointwise as programs

    plain = programs.exp_add(rows, columns)
    return programs.schedule(plain, programs.Tiling()).mod, plain


def layer_norm(rows: int, columns: int) -> tuple[Any, Any]:
    """Return the default schedule of a layer norm of bfloat16, and the plain loops."""
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.testing import memory_bound

    plain = memory_bound.layer_norm(rows, columns)
    sch = s_tir.Schedule(plain)
    hs.row_reduction(sch)
    return sch.mod, plain


VALUES = " with values"  # behind the name of a case that is also compared with its plain program
CASES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "matmul 4096": lambda: matmul(4096, 4096, 4096),
    "matmul 8192": lambda: matmul(8192, 8192, 8192),
    "matmul 1000 x 1000 x 1000, ragged": lambda: matmul(1000, 1000, 1000),
    "matmul 2000 x 3000 x 1096, ragged, persistent": lambda: matmul(2000, 3000, 1096),
    "pointwise 2^24": lambda: pointwise(4096, 4096),
    "layer_norm 64 x 262144": lambda: layer_norm(64, 262144),
}
ALL = [name + suffix for suffix in ("", VALUES) for name in CASES]


def static_check(name: str) -> dict[str, float]:
    """Measure the static check of one kernel, and the build that it is a part of."""
    import tvm

    import tvm_hopper
    from tvm_hopper.simulation import load
    from tvm_hopper.static_check import check_sync

    module, _ = CASES[name]()
    begun = time.process_time()
    tvm_hopper.cubin(tvm.compile(module, target=TARGET))
    build = time.process_time() - begun
    program = load(module, TARGET)
    (kernel,) = program.kernels.values()
    checks = []
    for number in range(STATIC_ROUNDS):
        fresh = kernel.with_attr("again", number)  # so that nothing is remembered
        begun = time.process_time()
        check_sync(fresh, program.host)
        checks.append(time.process_time() - begun)
    return {"static_ms": statistics.median(checks) * 1e3, "build_ms": build * 1e3}


def measure(name: str) -> dict[str, Any]:
    """Verify one kernel in this process.

    Returns
    -------
    dict
        verdict, schedules, CTAs, and `FIELDS`: the memory is the process's peak, TVM's 0.2 GB
        among it.
    """
    from tvm_hopper.simulation import load, verify

    module, plain = CASES[name.removesuffix(VALUES)]()
    program = load(module, TARGET)
    begun, used = time.perf_counter(), time.process_time()
    report = verify(program, progress=False, against=plain if name.endswith(VALUES) else False)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "case": name,
        "verdict": report.verdict,
        "schedules": sum(verdict != "skipped" for _, _, verdict in report.runs),
        "ctas": ", ".join(f"{len(c.blocks)} of {c.total}" for c in report.choices),
        "cuts": list(report.cuts),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_mb": peak / (1 << 20 if sys.platform == "darwin" else 1 << 10),
        **static_check(name.removesuffix(VALUES)),
    }


def in_fresh_process(name: str) -> dict[str, Any]:
    """Measure one case in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.verify", "--one", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def median(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one row of the table; `all_seconds` keeps the single times."""
    row = dict(rounds[0])
    row.update({field: statistics.median(r[field] for r in rounds) for field in FIELDS})
    row["all_seconds"] = [r["seconds"] for r in rounds]
    return row


def table(rows: list[dict[str, Any]], about: dict[str, str]) -> str:
    """Return the results as a markdown page."""
    lines = ["# Time and memory of `verify`", ""]
    lines += [f"- {key}: {value}" for key, value in about.items()]
    lines += [
        "",
        "| kernel | verdict | schedules | CTAs | seconds | CPU | peak MB | static ms | build ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['case']} | {row['verdict']} | {row['schedules']} | {row['ctas']} "
        f"| {row['seconds']:.1f} | {row['cpu_seconds']:.1f} | {row['peak_mb']:.0f} "
        f"| {row['static_ms']:.0f} | {row['build_ms']:.0f} |"
        for row in rows
    ]
    cut = [f"- {row['case']}: {'; '.join(row['cuts'])}" for row in rows if row["cuts"]]
    return "\n".join([*lines, "", "Loops that ran fewer turns:", "", *cut, ""])


def processor() -> str:
    """Return the name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    """Measure the cases, print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=ALL, choices=ALL)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/verify_*")
    parser.add_argument("--static", action="store_true", help="the static check alone")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    if arguments.static:
        for case in dict.fromkeys(name.removesuffix(VALUES) for name in arguments.cases):
            row = static_check(case)
            print(f"{case}: {row['static_ms']:.0f} ms of a build of {row['build_ms']:.0f} ms")
        return
    about = describe() | {"CPU": processor(), "cores": str(os.cpu_count())}
    about["load before"] = f"{os.getloadavg()[0]:.1f}"
    about["rounds"] = f"{arguments.rounds}, a fresh process each, medians"
    rows = [median([in_fresh_process(c) for _ in range(arguments.rounds)]) for c in arguments.cases]
    about["load after"] = f"{os.getloadavg()[0]:.1f}"
    page = table(rows, about)
    print(page)
    if arguments.save:
        write(RESULTS, "verify", page, {"machine": about, "rows": rows})


if __name__ == "__main__":
    main()
