"""A pipeline among whose statements no copy stands alone: a tile in by boxes, and out by boxes."""

import numpy as np
import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.simulation import simulate

TARGET = "nvidia/nvidia-h200"


def test_it_is_built_and_right():
    a = te.placeholder((2, 256), "float16", name="A")
    c = te.compute((2, 256), lambda i, j: a[i, j] * tvm.tirx.const(2, "float16"), name="C")
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, c])}))
    i, j = sch.get_loops("C")
    i0, k0, i1 = sch.split(i, [None, 2, 1])
    j0, j1 = sch.split(j, [None, 128])
    sch.reorder(i0, j0, k0, i1, j1)
    sch.bind(i0, "blockIdx.y")
    sch.bind(j0, "blockIdx.x")
    load = sch.cache_read("C", 0, "shared.dyn")
    sch.compute_at(load, k0)
    hs.async_copy(sch, load, swizzle=32)
    _, tx, v = sch.split(sch.fuse(i1, j1), [None, 32, 4])
    sch.bind(tx, "threadIdx.x")
    sch.vectorize(v)
    out = sch.cache_write("C", 0, "shared.dyn")
    sch.reverse_compute_at(out, k0)
    hs.async_store(sch, out, "tma", slots=2)
    hs.pipeline(sch, k0, stages=2)
    given = np.random.default_rng(1).standard_normal((2, 256)).astype("float16")
    result = simulate(sch.mod, {"A": given}, target=TARGET)
    assert not result.findings, result.findings
    np.testing.assert_array_equal(result.outputs["C"], given * 2)
