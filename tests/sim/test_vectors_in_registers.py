"""Registers that hold vectors: TVM makes them of arrays whose accesses are all as wide."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.simulation import simulate, verify

H200 = "nvidia/nvidia-h200"


def schedule(dtype: str, wide: int, mechanism: str) -> s_tir.Schedule:
    """Schedule C = 2 (A + 1), with A + 1 in a thread's registers as vectors, a tile a step."""
    a = te.placeholder((32, 128), dtype, name="A")
    y = te.compute(a.shape, lambda i, j: a[i, j] + tvm.tirx.const(1, dtype), name="Y")
    c = te.compute(a.shape, lambda i, j: y[i, j] * tvm.tirx.const(2, dtype), name="C")
    sch = s_tir.Schedule(te.create_prim_func([a, c]))
    i, j = sch.get_loops("C")
    block, step, row = sch.split(i, [2, None, 4])
    sch.bind(block, "blockIdx.x")
    sch.set_scope("Y", 0, "local")
    sch.compute_at("Y", step)
    for loops in (sch.get_loops("Y")[-2:], [row, j]):
        _, thread, vector = sch.split(sch.fuse(*loops), [None, 32, wide])
        sch.bind(thread, "threadIdx.x")
        sch.vectorize(vector)
    tile = sch.cache_read("Y", 0, "shared.dyn")
    sch.compute_at(tile, step)
    hs.async_copy(sch, tile, mechanism)
    hs.pipeline(sch, step, stages=2)
    return sch


@pytest.mark.parametrize("mechanism", ["cp_async", "bulk"])
@pytest.mark.parametrize(
    ("dtype", "wide", "held"),
    [("float32", 4, "float4"), ("float16", 4, "half4"), ("int8", 4, "int")],
)
def test_values(dtype, wide, held, mechanism):
    sch = schedule(dtype, wide, mechanism)
    executable = tvm.compile(sch.mod, target=H200)
    (cuda,) = executable.mod.imports
    assert f"{held} Y_local_ptr[" in cuda.inspect_source()
    a = np.random.default_rng(1).integers(-9, 9, (32, 128)).astype(dtype)
    result = simulate(executable, {"A": a})
    assert result.verdict == "clean", result
    assert np.array_equal(result.outputs["C"], 2 * (a + 1))


def test_a_pipeline_through_them_is_verified():
    report = verify(schedule("float32", 4, "bulk")).require_clean()
    assert "values compared" in str(report)
