"""Programs built into shared libraries by processes of their own."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

from .frameworks import to_relax
from .problems import Problem

TARGET = "nvidia/nvidia-h200"


def build(problem: Problem, fused: bool = True) -> tuple[Any, list[str]]:
    """Build a problem; return the executable and who computes each of its functions.

    Parameters
    ----------
    problem : Problem
        A program.
    fused : bool
        Whether what belongs together is one kernel. Else it is what TVM's fusion makes of it.
    """
    import tvm
    from tvm import relax

    from tvm_hopper.relax import lowering, report

    mod = to_relax(problem)
    maker = lowering.FuseMemoryBound if fused else lambda _: tvm.transform.Sequential([])
    with patch.object(lowering, "FuseMemoryBound", maker):
        ex = relax.build(mod, target=tvm.target.Target(TARGET), relax_pipeline="tvm_hopper")
    return ex, [x.computed_by for x in report(ex).functions]


def build_library(problem: Problem, path: str, several: bool = False) -> list[str]:
    """Build a problem into a shared library; return who computes each of its functions.

    With `several`, a second library has the program in several kernels, where TVM makes some.
    """
    ex, computed_by = build(problem)
    ex.export_library(path)
    if several:
        apart, functions = build(problem, fused=False)
        if len(functions) > len(computed_by):
            apart.export_library(path_of_several(path))
    return computed_by


def path_of_several(path: str) -> str:
    """Return where the library of several kernels is."""
    return str(Path(path).with_suffix(".several.so"))


def libraries(
    problems: Sequence[Problem], workers: int, several: bool = False
) -> Iterator[tuple[Problem, str, Future[list[str]]]]:
    """Build problems in processes of their own; yield each with its library."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{i}.so") for i in range(len(problems))]
        with ProcessPoolExecutor(workers, context) as pool:
            built = [
                pool.submit(build_library, x, path, several)
                for x, path in zip(problems, paths, strict=True)
            ]
            for future in built:  # what runs beside a measurement would slow its launches
                future.exception()
        yield from zip(problems, paths, built, strict=True)
