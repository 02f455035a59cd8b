"""Tiles, clusters and outputs that `hs.matmul` cannot serve are one clear error."""

import pytest
from tvm import s_tir, te

from tests.schedule.programs import module
from tests.schedule.refuse import refuse
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.testing import workloads


def test_a_product_beside_a_kernel_whose_tiles_cross_an_edge():
    """TVM then sees no order of the two, and pads nothing."""
    a, b, w = (
        te.placeholder((n, 64), "float16", name) for n, name in ((72, "A"), (64, "B"), (40, "W"))
    )
    k, r = te.reduce_axis((0, 64), "k"), te.reduce_axis((0, 64), "r")
    wide = lambda x: x.astype("float32")  # noqa: E731
    c = te.compute((72, 64), lambda i, j: te.sum(wide(a[i, k]) * wide(b[j, k]), k), name="C")
    h = te.compute((72, 64), lambda i, j: c[i, j].astype("float16"), name="H")
    e = te.compute((72, 40), lambda i, j: te.sum(wide(h[i, r]) * wide(w[j, r]), r), name="E")
    sch = s_tir.Schedule(module(a, b, w, e))
    config = hs.MatmulConfig(tile=(64, 64, 64), stages=2)
    hs.matmul(sch, "C", config)
    before = sch.mod
    with pytest.raises(ScheduleError, match=r"block E: found tiles .* in the kernel of C_pad_l"):
        hs.matmul(sch, "E", config)
    assert sch.mod.same_as(before)


def test_a_cluster_of_several_rows_where_tiles_have_one():
    config = hs.MatmulConfig(tile=(64, 64, 64), cluster=(2, 2))
    for layout, m, n in (("NT", 64, 192), ("TN", 40, 64)):
        plain = workloads.matmul(m, n, 64, layout)
        refuse(
            plain,
            r"block C, tile 64x64x64: found cluster=\(2, 2\) .* one row of tiles",
            config=config,
        )
    hs.matmul(s_tir.Schedule(workloads.matmul(192, 64, 64)), "C", config)


def test_an_output_of_another_type():
    plain = workloads.matmul(64, 64, 64, out_dtype="int16")
    refuse(plain, r"block C: found an output of int16; need one of float32, float16, bfloat16, flo")
