"""Statements over several register tiles: local buffers that are computed with a product."""

import numpy as np
import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.schedule import steps
from tvm_hopper.simulation import simulate, verify

M, N, K = 128, 48, 32


def program() -> tvm.IRModule:
    """Return S = relu(C), T = S * C, D = T + R[i, j] * b[j], with C = A B^T."""
    a, b = (te.placeholder((x, K), "float16", y) for x, y in ((M, "A"), (N, "B")))
    residual, bias = te.placeholder((M, N), "float32", "R"), te.placeholder((N,), "float32", "V")
    k = te.reduce_axis((0, K), "k")
    wide = lambda x: x.astype("float32")  # noqa: E731
    c = te.compute((M, N), lambda i, j: te.sum(wide(a[i, k]) * wide(b[j, k]), k), name="C")
    s = te.compute((M, N), lambda i, j: te.max(c[i, j], tvm.tirx.const(0.0, "float32")), name="S")
    t = te.compute((M, N), lambda i, j: s[i, j] * c[i, j], name="T")
    d = te.compute((M, N), lambda i, j: t[i, j] + residual[i, j] * bias[j], name="D")
    func = te.create_prim_func([a, b, residual, bias, d]).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": func})


def scheduled(mod: tvm.IRModule) -> s_tir.Schedule:
    """Keep S, T and R in registers: two warp groups of 64 rows, two steps of the sum."""
    sch = s_tir.Schedule(mod)
    block = sch.get_sblock("C")
    i, j, k = sch.get_loops(block)
    group, rows = sch.split(i, [2, None])
    k_outer, k_inner = sch.split(k, [None, 16])
    one = sch.split(j, [1, None])
    sch.reorder(one[0], group, k_outer, rows, one[1], k_inner)
    sch.bind(one[0], "blockIdx.x")
    sch.bind(group, "threadIdx.y")
    sch.set_scope(block, 0, "local")
    for number in range(2):
        copy = sch.cache_read(block, number, "shared.dyn")
        sch.compute_at(copy, k_outer)
        steps.async_copy(sch, copy, "tma")
    for name in "ST":
        sch.set_scope(name, 0, "local")
    for name in "STD":
        sch.reverse_compute_at(name, group)
    reads = [x.source.name for x in sch.get(sch.get_sblock("D")).reads]
    sch.compute_at(sch.cache_read("D", reads.index("R"), "local"), group)
    steps.wgmma(sch, block)
    steps.pipeline(sch, k_outer, 2, hs.Roles(2))
    return sch


def test_values():
    mod = program()
    sch = scheduled(mod)
    rng = np.random.default_rng(0)
    types = {"A": ((M, K), "float16"), "B": ((N, K), "float16")}
    types |= {"R": ((M, N), "float32"), "V": ((N,), "float32")}
    values = {x: rng.integers(-2, 3, shape).astype(dtype) for x, (shape, dtype) in types.items()}
    result = simulate(sch, values).require_clean()
    c = values["A"].astype("float32") @ values["B"].astype("float32").T
    want = np.maximum(c, 0) * c + values["R"] * values["V"]
    np.testing.assert_array_equal(result.outputs["D"], want)
    report = verify(sch, against=mod)
    assert report.verdict == "clean", report.table()
