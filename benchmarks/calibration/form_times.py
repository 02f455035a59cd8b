"""Time products of other types in several configurations: what the choice is fitted to by type.

    python -m benchmarks.calibration.form_times --seed 5 --count 24 OUTPUT.json

Problems are those of `benchmarks.forms`. Of each the configurations are timed that the estimate
puts at `PLACES`: the best ones close together, and some that it takes to be slower. All kernels are
built first, in parallel, and checked against float64. `fit_choice` reads the output.
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

from .. import machine, timing
from ..cold import COLD_BYTES, LONG_BYTES, MOST_SETS, SHORT_CALLS
from ..form_population import FORMS, FormProblem, problems
from ..forms import OUTPUTS, TARGET, Tensors, check, module, opponents
from ..matmul_case import register
from .tile_times import STORED_AS

PLACES = (0, 1, 3, 8, 20, 50, 120)  # in the order of the estimate


def configurations(problem: FormProblem) -> list[dict[str, Any]]:
    """Return the configurations that the estimate puts at `PLACES`, the chosen one first."""
    from tvm_hopper.facts.devices import Chip
    from tvm_hopper.schedule import MatmulConfig
    from tvm_hopper.schedule.products.model import as_product, rank_both
    from tvm_hopper.schedule.products.ring_and_order import choose_raster_group

    majors = ("k", "k" if problem.layout == "NT" else "mn")
    out = OUTPUTS.get(problem.form, "bfloat16")
    extents = problem.m, problem.n, problem.k
    wanted = as_product(*extents, problem.dtype, majors, out, problem.b)
    operands = "tf32" if problem.form == "tf32" else None
    ranked = rank_both(wanted, MatmulConfig(operands=operands), Chip(), max(PLACES) + 1)
    found = []
    for tile in (ranked[i] for i in PLACES if i < len(ranked)):
        one: dict[str, Any] = {
            "tile": tile.tile,
            "consumers": tile.consumers,
            "wgmma_pending": tile.pending,
            "stages": tile.stages,
        }
        if tile.parts > 1:
            one |= {"split_k": tile.parts, "split_mode": "caller" if tile.by_kernels else "cluster"}
        if tile.cluster != (1, 1):
            one["cluster"] = tile.cluster
        rows, columns, way = problem.m, problem.n, tile.transposed
        if way:
            rows, columns = columns, rows
        down, across = tile.cluster
        one["raster_group"] = choose_raster_group(
            rows, columns, problem.k, (tile.tile[0] * down, tile.tile[1] * across), problem.dtype,
            Chip().num_sms, down * across * problem.b, way,
        )  # fmt: skip
        found.append(one | {"transposed": way})
    return found


def as_config(problem: FormProblem, fields: dict[str, Any]) -> Any:
    """Return a configuration of `configurations` as one of the package."""
    from tvm_hopper import schedule as hs

    own = dict(fields)
    own["form"] = "transposed" if own.pop("transposed") else "untransposed"
    own["raster"] = own.pop("raster_group")
    if mode := own.pop("split_mode", None):
        own["split_k"] = hs.SplitK(own["split_k"], mode)
    return hs.MatmulConfig(**own, operands="tf32" if problem.form == "tf32" else None)


def build_library(problem: FormProblem, fields: dict[str, Any], path: str) -> str:
    """Build one configuration into a shared library; returns an error's text, or none."""
    import tvm
    from tvm import s_tir
    from tvm.target import Target

    from tvm_hopper import schedule as hs

    register()
    try:
        sch = s_tir.Schedule(module(problem))
        with Target(TARGET):
            hs.matmul(sch, "C", as_config(problem, fields))
        tvm.compile(sch.mod, target=TARGET).export_library(path)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[-1][:300]}"
    return ""


def describe(problem: FormProblem) -> dict[str, Any]:
    """Return what the fit has to know of a problem."""
    return {
        "problem": [problem.m, problem.n, problem.k, problem.layout, problem.dtype],
        "batch": problem.b,
        "out_dtype": OUTPUTS.get(problem.form, "bfloat16"),
    }


def measure(
    problem: Any, configs: list[dict[str, Any]], paths: list[str], repeats: int, kind: Any
) -> dict[str, Any]:
    """Return the times in us of PyTorch and of each configuration that is right.

    - `kind`: tensors of a problem, a check against float64, and PyTorch's ways to compute it.
    """
    import torch
    import tvm
    import tvm_ffi

    tensors, check, opponents = kind
    first = tensors(problem)
    runs, messages = {}, {}
    for i, path in enumerate(paths):
        run = tvm.runtime.load_module(path)["main"]
        error = check(run, first)
        if error <= 1:
            runs[str(i)] = run
        else:
            messages[i] = f"error {error:.3g} of its bound"
    count = min(max(2, -(-COLD_BYTES // first.num_bytes)), MOST_SETS)
    sets = [first, *(tensors(problem) for _ in range(count - 1))]
    contenders = [timing.Contender(name, call) for name, call in opponents(problem, sets).items()]
    names = [x.name for x in contenders]
    for name, run in runs.items():
        contenders.append(
            timing.Contender(
                name, lambda i, run=run: run(*sets[i].arguments), tvm_ffi.use_torch_stream
            )
        )
    calls = SHORT_CALLS if first.num_bytes < LONG_BYTES else 0
    times = {x.name: x.median_us for x in timing.measure_cold(contenders, count, repeats, calls)}
    sets.clear()
    torch.cuda.empty_cache()
    return {
        "configs": configs,
        "us": [round(times[str(i)], 3) if str(i) in times else None for i in range(len(configs))],
        "cublas": min(times[x] for x in names),
        "messages": messages,
    }


def time_plan(
    plan: list[tuple[Any, list[dict[str, Any]]]], build: Any, kind: Any, say: Any, options: Any
) -> int:
    """Build all configurations of all problems, then time one problem after the other.

    - `build`: builds a configuration of a problem into a library; returns an error's text, or none.
    - `kind`: see `measure`.
    - `say`: describes a problem, for the fit.
    - returns 0 if all were right.
    """
    begun = time.monotonic()
    rows: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        with concurrent.futures.ProcessPoolExecutor(options.workers, context) as pool:
            jobs = [
                [
                    (fields, path, pool.submit(build, problem, fields, path))
                    for i, fields in enumerate(configs)
                    for path in [os.path.join(folder, f"{p}_{i}.so")]
                ]
                for p, (problem, configs) in enumerate(plan)
            ]
            concurrent.futures.wait([job for own in jobs for *_, job in own])
        print(f"built after {time.monotonic() - begun:.0f} s", flush=True)
        register()
        for (problem, _), own in zip(plan, jobs, strict=True):
            if time.monotonic() - begun > options.seconds:
                print("out of time")
                break
            good = [(fields, path) for fields, path, job in own if not job.result()]
            refused = {json.dumps(fields): job.result() for fields, _, job in own if job.result()}
            found = [x for x, _ in good], [x for _, x in good]
            row = {**say(problem), **measure(problem, *found, options.repeats, kind)}
            rows.append(row | {"refused": refused})
            best = min((x for x in row["us"] if x is not None), default=float("nan"))
            times = f"{row['us'][:1]}, best {best}, PyTorch {row['cublas']:.2f}"
            print(f"{problem.name}: {times}", flush=True)
            said = {"machine": machine.describe()} | STORED_AS | {"rows": rows}
            options.output.write_text(json.dumps(said, indent=0))
    return int(any(row["messages"] for row in rows))


def arguments_of(text: str) -> argparse.ArgumentParser:
    """Return a parser of what all such plans take."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--count", type=int, default=24, help="problems of each form")
    parser.add_argument("--seconds", type=float, default=200.0, help="start no problem after this")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=7)
    return parser


def main(arguments: list[str]) -> int:
    """Build all, then time one problem after the other. 0: all were right."""
    parser = arguments_of(__doc__.splitlines()[0])
    parser.add_argument("--forms", nargs="+", default=["fp8", "int8", "tf32"], choices=FORMS)
    options = parser.parse_args(arguments)
    # Forms in turn, so that a run that is cut short has some of each.
    drawn = zip(*(problems(x, options.seed, options.count) for x in options.forms), strict=True)
    plan = [(one, configurations(one)) for row in drawn for one in row]
    return time_plan(plan, build_library, (Tensors, check, opponents), describe, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
