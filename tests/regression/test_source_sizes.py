"""Bytes of a ragged cp.async, which TVM's analysis takes for negative where it forgets a guard."""

import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.simulation import verify


def test_a_ragged_row_of_few_chunks_is_built():
    a, b = (te.placeholder((31, 1, 1), "float32", name=name) for name in "AB")
    c = te.compute(a.shape, lambda *i: a(*i) + b(*i), name="C")
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]).with_attr("global_symbol", "main"))
    loops = [
        sch.split(x, y)
        for x, y in zip(sch.get_loops("C"), ([None, 2, 8], [None, 2], [None, 128]), strict=True)
    ]
    (o0, k0, p0), (o1, p1), (o2, p2) = loops
    sch.reorder(o0, o1, o2, k0, p0, p1, p2)
    sch.bind(sch.fuse(o0, o1, o2), "blockIdx.x")
    for index in (0, 1):
        copy = sch.cache_read("C", index, "shared.dyn")
        sch.compute_at(copy, k0)
        hs.async_copy(sch, copy, "cp_async")
    _, thread, _ = sch.split(sch.fuse(p0, p1, p2), [None, 128, 1])
    sch.bind(thread, "threadIdx.x")
    out = sch.cache_write("C", 0, "shared.dyn")
    sch.reverse_compute_at(out, k0)
    hs.async_store(sch, out, "tma")
    tvm.compile(sch.mod, target="nvidia/nvidia-h200")
    verify(sch).require_clean()
