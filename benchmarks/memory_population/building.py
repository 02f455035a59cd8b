"""Programs built into shared libraries by processes of their own."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from .frameworks import to_relax
from .problems import Problem

TARGET = "nvidia/nvidia-h200"


def build(problem: Problem) -> tuple[Any, list[str]]:
    """Build a problem; return the executable and who computes each of its functions."""
    import tvm
    from tvm import relax

    from tvm_hopper.relax import report

    mod = to_relax(problem)
    ex = relax.build(mod, target=tvm.target.Target(TARGET), relax_pipeline="tvm_hopper")
    return ex, [x.computed_by for x in report(ex).functions]


def build_library(problem: Problem, path: str) -> list[str]:
    """Build a problem into a shared library; return who computes each of its functions."""
    ex, computed_by = build(problem)
    ex.export_library(path)
    return computed_by


def libraries(
    problems: Sequence[Problem], workers: int
) -> Iterator[tuple[Problem, str, Future[list[str]]]]:
    """Build problems in processes of their own; yield each with its library."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{i}.so") for i in range(len(problems))]
        with ProcessPoolExecutor(workers, context) as pool:
            built = list(map(pool.submit, [build_library] * len(problems), problems, paths))
            for future in built:  # what runs beside a measurement would slow its launches
                future.exception()
        yield from zip(problems, paths, built, strict=True)
