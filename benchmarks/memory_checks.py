"""The kernels of `benchmarks.memory` without a GPU: verified, and how long each takes to build.

    python -m benchmarks.memory_checks
    python -m benchmarks.memory_checks --workers 8 --only softmax "x 131072"

Each program is scheduled and compiled to a cubin at the size that is timed, in a process that has
built another kernel before. The same configuration then schedules a few rows of that length, which
`verify` compares with the plain program; sums of columns get four thread blocks (or clusters) of
several turns each. Exit code 1 if one is not clean.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import machine, memory, memory_programs
from benchmarks.memory_programs import PROGRAMS
from tvm_hopper.testing import memory_bound

RESULTS = Path(__file__).parent / "results"
GIB = 2.0
FEW_BLOCKS = 4  # thread blocks, or clusters of them, that share rows or columns
TURNS = 3  # iterations of each, where it loops over rows


def module(case: memory.Case, rows: int) -> tuple[Any, str]:
    """Return the program of a case with so many rows, and the name of its schedule helper."""
    if case.program in PROGRAMS:
        program = PROGRAMS[case.program]
        return program.build(rows, case.columns), program.helper
    helper = "row_reduction" if case.program in memory_bound.ROW_REDUCTIONS else "pointwise"
    return getattr(memory_bound, case.program)(rows, case.columns, case.dtype), helper


def chosen(mod: Any, helper: str) -> Any:
    """Return the configuration that a helper chooses."""
    from tvm import s_tir

    from tvm_hopper.schedule.column_reduction.apply import chosen_columns
    from tvm_hopper.schedule.pointwise.apply import chosen_elements
    from tvm_hopper.schedule.row_reduction.apply import chosen_rows

    ask = {
        "row_reduction": chosen_rows,
        "column_reduction": chosen_columns,
        "pointwise": chosen_elements,
    }
    return ask[helper](s_tir.Schedule(mod))


def fewer(case: memory.Case, config: Any, helper: str) -> tuple[int, Any]:
    """Return a few rows of a case, and its configuration for those."""
    if case.program == "group_norm":
        return memory_programs.GROUPS, config
    if helper == "pointwise":
        block = config.threads * (config.chunks or 1) * (config.vector or 1)
        square = case.program == "transpose"
        return min(case.rows, 128 if square else 2 + FEW_BLOCKS * block // case.columns), config
    if helper == "column_reduction":
        if config.group:
            return 2 * config.group, config
        trip = config.rows * config.flight
        return FEW_BLOCKS * trip * TURNS + trip // 2 + 1, replace(config, blocks=FEW_BLOCKS)
    if config.persistent:
        rows = FEW_BLOCKS * (config.rows or 1)
        return rows * TURNS + 1, replace(config, persistent=FEW_BLOCKS)
    return min(case.rows, FEW_BLOCKS * config.rows + (config.rows > 1)), config


def scheduled(mod: Any, helper: str, config: Any = None) -> Any:
    """Return a schedule."""
    from tvm import s_tir

    from tvm_hopper import schedule as hs

    sch = s_tir.Schedule(mod)
    getattr(hs, helper)(sch, config=config)
    return sch


def build_seconds(mod: Any, helper: str) -> float:
    """Return how long a program takes from plain loops to a cubin."""
    import tvm

    import tvm_hopper

    start = time.perf_counter()
    tvm_hopper.cubin(tvm.compile(scheduled(mod, helper).mod, target=memory.TARGET))
    return time.perf_counter() - start


def check(case: memory.Case, budget: float) -> dict[str, Any]:
    """Build one case and verify it on fewer rows; return its row of the table."""
    import tvm_hopper

    build_seconds(*module(memory.Case("copy", 1024, 1024), 1024))  # loads what a process loads once
    mod, helper = module(case, case.rows)
    seconds = build_seconds(mod, helper)
    if not budget:
        return {"case": case.name, "build, s": round(seconds, 2)}
    rows, config = fewer(case, chosen(mod, helper), helper)
    plain, _ = module(case, rows)
    start = time.perf_counter()
    report = tvm_hopper.verify(scheduled(plain, helper, config), against=plain, budget_s=budget)
    if report.verdict != "clean":
        print(report.table(), file=sys.stderr)
    return {
        "case": case.name,
        "build, s": round(seconds, 2),
        "verified rows": rows,
        "verdict": report.verdict,
        "verify, s": round(time.perf_counter() - start, 1),
    }


def checks(table: list[memory.Case], budget: float, workers: int) -> Iterator[dict[str, Any]]:
    """Check all cases, in some processes, the longest rows first; yield what is ready."""
    table = sorted(table, key=lambda x: -x.columns)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for job in as_completed([pool.submit(check, x, budget) for x in table]):
            yield job.result()


def main(argv: list[str]) -> int:
    """Print the table and write it to `results/`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_checks", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name contains one")
    text = "seconds of `verify` for one; 0: kernels are built alone"
    parser.add_argument("--budget", type=float, default=600.0, help=text)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    table = []
    cases = memory.cases(GIB, arguments.only)
    for row in checks(cases, arguments.budget, arguments.workers):
        table.append(row)
        print(*row.values(), sep="  ", flush=True)
    names = [x.name for x in cases]
    table.sort(key=lambda row: names.index(row["case"]))
    title = "Memory-bound kernels: time from plain loops to a cubin, and what verify says"
    print(machine.save(arguments.out, "memory_checks", title, list(table[0]), table))
    return 0 if all(x.get("verdict", "clean") == "clean" for x in table) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
