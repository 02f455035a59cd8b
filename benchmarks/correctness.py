"""Check lowered matmuls on a GPU: the grid of shapes and layouts, a cover of configurations.

    python -m benchmarks.correctness --minutes 8 --output results.json [--resume results.json]

Builds and runs in parallel, one process a core. Integer-valued inputs must give the float64 product
rounded once, bit for bit; normal ones stay under a relative error; the poison around every tensor
stays untouched; what breaks the 16-byte rule of TMA must be refused with a text that says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from . import covering, form_case, machine, matmul_case, worker_pool
from .form_case import FormCase
from .matmul_case import Case

GRID_M = (1, 8, 100, 128, 1000, 4096)
GRID_N = (8, 128, 1000, 4096)
GRID_K = (8, 64, 72, 1024, 4104)
LAYOUTS = ("NT", "NN", "TN", "TT")
SYMBOLIC_M = (0, 1, 127, 128, 129, 4096)
FACTORS = {
    "tile": ((64, 64, 64), (128, 128, 64), (128, 256, 64), (192, 128, 64)),
    "stages": (1, 2, 3, 4),
    "consumers": (1, 2, 3),
    "dtype": ("float16", "bfloat16"),
    "out_dtype": ("float32", "float16", "bfloat16"),
    "layout": LAYOUTS,
}
COVER_SHAPE = (456, 328, 392)  # no tile divides it, several tiles and trips of the ring
TASK_SECONDS = 150.0


def breaks_16_byte_rule(case: Case) -> bool:
    """Tell whether a row of A or B is no multiple of 16 bytes, so that TMA cannot read it."""
    inner_a = case.k if case.layout[0] == "N" else case.m
    inner_b = case.n if case.layout[1] == "N" else case.k
    return any(inner is not None and inner * 2 % 16 for inner in (inner_a, inner_b))


def grid_cases(dtype: str, out_dtype: str) -> list[Case]:
    """Return every (M, N, K) in every layout; the illegal ones are expected to be refused."""
    cases = [
        Case(m, n, k, layout, dtype, out_dtype)
        for k, m, n, layout in itertools.product(GRID_K, GRID_M, GRID_N, LAYOUTS)
    ]
    return [_mark(case) for case in cases]


def _mark(case: Case) -> Case:
    return dataclasses.replace(case, expect_refusal=breaks_16_byte_rule(case))


def refused_cases() -> list[Case]:
    """Return rows that are no multiple of 16 bytes: K = 100 and N = 1001."""
    return [_mark(Case(128, 128, 100, "NT")), _mark(Case(128, 1001, 128, "NN"))]


def symbolic_cases() -> list[Case]:
    """Return matmuls of one build and many M; A's rows must not depend on M."""
    return [
        Case(None, n, k, layout, dtype, "float16", sizes=SYMBOLIC_M)
        for (n, k), layout, dtype in itertools.product(
            ((4096, 1024), (1000, 72)), ("NT", "NN"), ("float16", "bfloat16")
        )
    ]


def is_legal(row: dict[str, Any]) -> bool:
    """Tell from the chip's limits whether a configuration, or a part of one, can exist."""
    from tvm_hopper.schedule.products.config import ARCH, MatmulConfig, find_violations

    if len(row) < len(FACTORS):
        return True
    config = MatmulConfig(tile=row["tile"], stages=row["stages"], consumers=row["consumers"])
    return not find_violations(row["tile"], row["stages"], config, row["dtype"], ARCH)


def cover_cases() -> list[Case]:
    """Cover every pair of tile, stages, consumers, types and majors that the chip can hold."""
    return [
        Case(
            *COVER_SHAPE,
            row["layout"],
            row["dtype"],
            row["out_dtype"],
            {name: row[name] for name in ("tile", "stages", "consumers")},
        )
        for row in covering.pairwise(FACTORS, is_legal)
    ]


EPILOGUES = (
    ("relu",),
    ("gelu",),
    ("silu",),
    ("scale",),
    ("bias_col",),
    ("bias_row",),
    ("residual",),
    ("bias_col", "gelu"),
    ("scale", "bias_row", "residual", "relu"),
)
FORMS = (
    {"batch": True},
    {"index": "int64"},
    {"swap": True},
    {"cast": "after"},
    {"cast_stage": True},
    {"batch": True, "index": "int64", "cast_stage": True, "epilogue": ("bias_col", "silu")},
)


def epilogue_cases() -> list[Case]:
    """Return each fused epilogue, on a shape that no tile divides, to a wide and a narrow type."""
    return [
        Case(*COVER_SHAPE, layout, dtype, out_dtype, form={"epilogue": epilogue})
        for epilogue in EPILOGUES
        for layout, dtype, out_dtype in (
            ("NT", "float16", "float32"),
            ("NN", "bfloat16", "bfloat16"),
        )
    ]


def form_cases() -> list[Case]:
    """Return the product written in other ways, and a float16 sum that is widened on request."""
    narrow = {"acc_dtype": "float16", "cast": "none"}
    return [
        *(
            Case(*COVER_SHAPE, layout, "float16", "float16", form=form)
            for form in FORMS
            for layout in ("NT", "NN")
        ),
        Case(*COVER_SHAPE, "NN", "float16", "float16", {"accumulate": "float32"}, form=narrow),
    ]


def part_cases() -> list[FormCase]:
    """Return products on parts and views, in place, from a bias, with several outputs."""
    from tvm_hopper.testing.forms import FORMS

    shapes = (COVER_SHAPE, (256, 256, 256), (1, 136, 72))
    return [
        FormCase(form, *shape, dtype)
        for form in FORMS
        for shape in shapes
        for dtype in ("float16", "bfloat16")
        # one row with a stride of its own along K: no tensor map steps over it
        if not (form == "column_strides" and shape[0] == 1)
    ]


OPTIONS = {
    "tile": ((64, 64, 64), (128, 128, 64), (128, 128, 128), (256, 128, 64), (64, 48, 16)),
    "swizzle": (0, 32, 64, 128),
    "wgmma_pending": (0, 1),
    "raster": (1, 3),
    "persistent": (0, 4),
    "layout": LAYOUTS,
}


def option_cases() -> list[Case]:
    """Cover every pair of tile, swizzle, groups in flight, orders of tiles and majors."""
    return [
        Case(
            *COVER_SHAPE,
            row["layout"],
            out_dtype="float32",
            config={name: value for name, value in row.items() if name != "layout"},
        )
        for row in covering.pairwise(OPTIONS, swizzle_fits)
    ]


def swizzle_fits(row: dict[str, Any]) -> bool:
    """Tell whether rows of both shared tiles, once known, are whole swizzle patterns."""
    if len(row) < len(OPTIONS):
        return True
    tile_m, tile_n, tile_k = row["tile"]
    span = max(row["swizzle"], 16) // 2
    inner_a = tile_k if row["layout"][0] == "N" else tile_m
    inner_b = tile_n if row["layout"][1] == "N" else tile_k
    return inner_a % span == 0 and inner_b % span == 0


SETS = {
    "cover": cover_cases,
    "option": option_cases,
    "epilogue": epilogue_cases,
    "form": form_cases,
    "parts": part_cases,
    "symbolic": symbolic_cases,
    "refused": refused_cases,
    "grid-float16": functools.partial(grid_cases, "float16", "float32"),
    "grid-bfloat16": functools.partial(grid_cases, "bfloat16", "bfloat16"),
}


def run_case(case: Case | FormCase) -> dict[str, Any]:
    """Build and judge one case; never raises, so that one bad kernel does not end the run."""
    from tvm_hopper.errors import HopperError

    judge: Any = form_case if isinstance(case, FormCase) else matmul_case
    result: dict[str, Any] = {"case": case.name, "status": "failed", "fatal": False}
    start = time.monotonic()
    try:
        executable = judge.build(case)
        result["build_s"] = round(time.monotonic() - start, 2)
        if case.expect_refusal:
            return result | {"message": "built; need a refusal that names the 16-byte rule"}
        errors = judge.check(case, executable["main"])
        return result | {"status": "passed", "error": max(errors.values())}
    except HopperError as error:
        says_why = "16 bytes" in str(error) or "multiple of 8" in str(error)
        status = "refused" if case.expect_refusal and says_why else "failed"
        return result | {"status": status, "message": str(error).splitlines()[-1][:500]}
    except AssertionError as error:
        return result | {"message": str(error)[:500]}
    except Exception as error:
        text = "".join(traceback.format_exception_only(error))
        return result | {"message": text[-800:], "fatal": "CUDA" in text or "cuda" in text}


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), metavar="SET")
    parser.add_argument("--minutes", type=float, default=8.0, help="start no case after this")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=int, help="only the first so many cases of each set")
    parser.add_argument("--only", default="", help="only cases whose name holds this text")
    parser.add_argument("--output", type=Path, default=Path("correctness.json"))
    parser.add_argument("--resume", type=Path, help="skip what passed or was refused there")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Run the sets; exit code 0 when nothing failed and nothing is left."""
    options = parse(argv)
    until = time.monotonic() + 60 * options.minutes
    done: dict[str, dict[str, Any]] = {}
    if options.resume and options.resume.exists():
        rows = json.loads(options.resume.read_text())["results"]
        done = {row["case"]: row for row in rows if row["status"] != "failed"}
    wanted = [
        case
        for name in options.sets
        for case in SETS[name]()[: options.limit]
        if options.only in case.name
    ]
    todo = [case for case in wanted if case.name not in done]
    print(f"{len(wanted)} cases, {len(wanted) - len(todo)} done before, {len(todo)} to run")
    results, last = dict(done), time.monotonic()
    told: set[str] = set()  # a fault that a hundred cases share is printed once
    for case, result in worker_pool.run_tasks(
        run_case, todo, options.workers, TASK_SECONDS, until, lambda r: r["fatal"]
    ):
        if isinstance(result, worker_pool.WorkerError):
            result = {"case": case.name, "status": "failed", "message": str(result)}
        results[case.name] = result
        if result["status"] == "failed" and (new := result["message"]) not in told:
            told.add(new)
            print(f"FAILED {case.name}: {new}", flush=True)
        if time.monotonic() - last > 10:
            last = time.monotonic()
            print(f"{len(results)} of {len(wanted)} cases", flush=True)
            write(options.output, wanted, results)
    return write(options.output, wanted, results, final=True)


def write(path: Path, wanted: list[Case], results: dict[str, Any], final: bool = False) -> int:
    """Write the summary; returns the exit code."""
    mine = [results[case.name] for case in wanted if case.name in results]
    counts = {s: sum(r["status"] == s for r in mine) for s in ("passed", "refused", "failed")}
    counts["not run"] = len(wanted) - len(mine)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = {"machine": machine.describe(), "counts": counts, "results": mine}
    path.write_text(json.dumps(text, indent=1))
    if final:
        print(", ".join(f"{count} {name}" for name, count in counts.items()), f"-> {path}")
    return int(bool(counts["failed"] or counts["not run"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
