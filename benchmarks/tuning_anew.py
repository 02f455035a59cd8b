"""Winners of a search, compared with float64 and timed anew beside the package's own choice.

By graphs of torch, in turn, on other inputs than the search had: a search that only picks lucky
measurements shows here. Kernels are built by the search's own workers, all at once.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from . import matmul_case, timing
from .population import Problem

SET_BYTES = 256 << 20  # of tensors that a timing rotates through, beyond the L2 cache
MOST_SETS = 16
WARM_SECONDS = 1.0


def build_all(builder: Any, problem: Any, configs: list[Any]) -> list[str | None]:
    """Build configurations of a problem; None is what did not build."""
    return _built(builder, [(problem, x) for x in configs])


def build_pairs(builder: Any, found: list[Any]) -> list[list[str | None]]:
    """Build the package's choice and the winner of each problem, all at once.

    `found` are rows of which the second is a winner, and the third its problem.
    """
    configs = [(x[2], y) for x in found for y in (x[2].built_in(), x[1].config)]
    made = _built(builder, configs)
    return [made[i : i + 2] for i in range(0, len(made), 2)]


def _built(builder: Any, configs: list[tuple[Any, Any]]) -> list[str | None]:
    from tvm.s_tir import meta_schedule as ms

    from tvm_hopper.meta_schedule.schedulers import schedule_fast

    inputs = [
        ms.builder.BuilderInput(schedule_fast(problem, config).mod, problem.target, None)
        for problem, config in configs
    ]
    built = list(builder.build(inputs)) if inputs else []
    return [None if x.artifact_path is None else str(x.artifact_path) for x in built]


def kernel_of(path: str | None, problem: Any, config: Any) -> Any:
    """Return a kernel that was built elsewhere; one that was not is compiled here."""
    import tvm

    from tvm_hopper.meta_schedule.measuring import artifact

    if path is None:
        return tvm.compile(problem.schedule(config).mod, target=problem.target)["main"]
    manifest = artifact.check(path, artifact.read_files(path))
    return artifact.load(artifact.folder_of(path), manifest)


def time_anew(problem: Any, kernels: list[Any]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the times of the package's choice and of another, at full load, and without pauses."""
    import torch

    shapes = [[int(x) for x in param.ty.shape] for param in problem.mod["main"].params]
    dtypes = [str(param.ty.dtype) for param in problem.mod["main"].params]
    num_sets = max(1, min(MOST_SETS, -(-SET_BYTES // max(1, problem.moved_bytes))))
    sets = [
        [
            torch.randn(shape, device="cuda").to(getattr(torch, dtype))
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        for _ in range(num_sets)
    ]

    def contender(name: str, kernel: Any) -> timing.Contender:
        return timing.Contender(name, lambda i: kernel(*sets[i]))

    contenders = list(map(contender, ("choice", "tuned"), kernels))
    hot = timing.measure(contenders, num_sets, repeats=60, warmup_seconds=WARM_SECONDS)
    cold = timing.measure_cold(contenders, num_sets, repeats=31)
    first, second = ((x[0].median_us, x[1].median_us) for x in (hot, cold))
    return first, second


def error_of(p: Problem, config: Any, kernel: Any) -> float:
    """Compare the winner with float64 on fresh inputs in poison; return its relative error."""
    fields = {
        f.name: v for f in dataclasses.fields(config) if (v := getattr(config, f.name)) != f.default
    }
    case = matmul_case.Case(p.m, p.n, p.k, p.layout, p.dtype, p.dtype, fields)
    return max(matmul_case.check(case, kernel, seed=17).values())
