"""Time matmuls in many configurations on a GPU: what the model of the choice is fitted to.

    python -m benchmarks.calibration.tile_times PLAN.json OUTPUT.json

The plan is a list of {"problem": [m, n, k, layout, dtype], "configs": [{"tile": [..], ..}, ..]}.
Kernels are built in parallel; each is compared with float32 on the GPU before it is timed. With
`--early` a problem is timed when its own kernels are there, while others are built: graphs run on
the GPU alone, so that busy cores change little, and a long plan takes half the time.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .. import machine
from ..cold import tensor_sets, time_cold
from ..matmul_case import TOLERANCE, Case, build, register

STORED_AS = {
    "spare_rows": True,
    "turned_stores": True,
    "shifted_stores": True,
}  # what the fit has to know of kernels


def build_library(case: Case, path: str) -> str:
    """Build a case into a shared library; returns an error's text, or none."""
    try:
        build(case).export_library(path)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[-1][:300]}"
    return ""


def relative_error(case: Case, run: Any) -> float:
    """Run a kernel on a poisoned output, and compare it with a product in float32."""
    a, b, out = tensor_sets(case)[0]
    out.fill_(float("nan"))
    run(a, b, out)
    left = (a if case.layout[0] == "N" else a.t()).float()
    want = left @ (b if case.layout[1] == "N" else b.t()).float()
    return float((out.float() - want).norm() / want.norm())


def measure(problem: list[Any], configs: list[dict], paths: list[str]) -> dict[str, Any]:
    """Return the times in us of cuBLAS and of each configuration that was built and is right."""
    import tvm

    m, n, k, layout, dtype = problem
    case = Case(m, n, k, layout, dtype, dtype)
    row: dict[str, Any] = {"problem": problem, "configs": configs, "us": [None] * len(configs)}
    runs, row["messages"] = {}, {}
    for i, path in enumerate(paths):
        try:
            run = tvm.runtime.load_module(path)["main"]
            error = relative_error(case, run)
        except Exception as fault:
            row["messages"][i] = str(fault).splitlines()[-1][:300]
            continue
        if error < TOLERANCE[dtype]:
            runs[str(i)] = run
        else:
            row["messages"][i] = f"relative error {error:.1e}"
    times = time_cold(case, runs, repeats=7)
    row["cublas"] = times.pop("cublas").median_us
    for name, t in times.items():
        row["us"][int(name)] = round(t.median_us, 3)
    return row


def main(arguments: list[str]) -> int:
    """Build all, then time one problem after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=150.0, help="start no problem after this")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--early", action="store_true", help="time while others are built")
    options = parser.parse_args(arguments)
    until = time.monotonic() + options.seconds
    plan = json.loads(options.plan.read_text())
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(options.workers, context) as pool:
            built = []
            for p, entry in enumerate(plan):
                m, n, k, layout, dtype = entry["problem"]
                cases = [
                    Case(m, n, k, layout, dtype, dtype, dict(config)) for config in entry["configs"]
                ]
                paths = [os.path.join(folder, f"{p}_{i}.so") for i in range(len(cases))]
                jobs = [pool.submit(build_library, *x) for x in zip(cases, paths, strict=True)]
                built.append((entry, paths, jobs))
            register()
            last = built[-1][2][-1] if built else None
            if last is not None and not options.early:
                concurrent.futures.wait([job for *_, jobs in built for job in jobs])
                print(f"built after {time.monotonic() - until + options.seconds:.0f} s", flush=True)
            for entry, paths, jobs in built:
                if time.monotonic() > until:
                    print("out of time")
                    pool.shutdown(wait=False, cancel_futures=True)
                    break
                texts = [job.result() for job in jobs]
                good = [i for i, text in enumerate(texts) if not text]
                row = measure(
                    entry["problem"],
                    [entry["configs"][i] for i in good],
                    [paths[i] for i in good],
                )
                row["refused"] = {
                    json.dumps(entry["configs"][i]): t for i, t in enumerate(texts) if t
                }
                rows.append(row)
                done = [t for t in row["us"] if t is not None]
                best = min(done, default=float("nan"))
                print(*entry["problem"], f"cuBLAS {row['cublas']:.2f} best {best:.2f}", flush=True)
                options.output.write_text(
                    json.dumps(
                        {"machine": machine.describe()} | STORED_AS | {"rows": rows},
                        indent=0,
                    )
                )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
