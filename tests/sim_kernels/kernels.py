"""Schedule a matmul, run its final device function in the simulator, compare with float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import workloads

RUNS = (("lifo", 0), ("random", 1), ("starve:consumer", 0))  # beside the one that is compared
APPROXIMATE = {"gelu", "silu"}  # not exact in float32


def scheduled(
    problem: dict[str, Any], tile: tuple[int, int, int], **config: Any
) -> tuple[tvm.IRModule, tvm.IRModule]:
    """Return a workload as it was and as `hs.matmul` schedules it."""
    mod = workloads.matmul(**problem)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(tile, **config))
    return mod, sch.mod


def check(
    problem: dict[str, Any],
    tile: tuple[int, int, int] = (64, 64, 64),
    policy: str = "on_wait",
    seed: int = 0,
    extents: dict[str, int] | None = None,
    change: Callable[[tvm.IRModule], tvm.IRModule] = lambda module: module,
    **config: Any,
) -> None:
    """Run one kernel on small integers: the float64 product rounded once, and a clean verdict."""
    mod, module = scheduled(problem, tile, **config)
    kernel = load(change(module))
    extents = extents or {}
    inputs = workloads.make_inputs(mod, seed=1, **extents)
    names = [p.name for p in mod["main"].params]
    shape, dtype = workloads.argument_types(mod, **extents)[-1]
    values = dict(zip(names, inputs, strict=False))
    result = simulate(kernel, values, policy, seed)
    assert not result.findings, "\n".join(map(str, result.findings))
    epilogue = problem.get("epilogue", ())
    want = workloads.reference(inputs, problem.get("layout", "NT"), epilogue)
    got = result.outputs[names[-1]]
    assert got.shape == shape
    if APPROXIMATE & set(epilogue):
        tolerance = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
        np.testing.assert_allclose(got.astype(float), want, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, want.astype(workloads.numpy_type(dtype)))
    for name, value in values.items():
        np.testing.assert_array_equal(result.outputs[name], value)  # inputs stay as they are
    verify(kernel, values, RUNS, max_ctas=2).require_clean()


def multiply_by_hand(
    sch: s_tir.Schedule, group: Any, step: Any, fused: bool = False, **pipeline: Any
) -> None:
    """Let the loops of "C" under a warp group's loop multiply by WGMMA, a step of copies ahead."""
    block = sch.get_sblock("C")
    store = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(store, group)
    for operand in (0, 1):
        copy = sch.cache_read(block, operand, "shared.dyn")
        sch.compute_at(copy, step)
        hs.async_copy(sch, copy)
    if fused:
        hs.fuse_epilogue(sch, store)
    hs.wgmma(sch, block)
    hs.pipeline(sch, step, **{"stages": 1, **pipeline})
