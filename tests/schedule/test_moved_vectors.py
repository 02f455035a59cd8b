"""Vectors that rows beginning anywhere share, and masks: values, and how they are loaded."""

import pytest
import tvm
from tvm import s_tir, te, tirx

from tvm_hopper import schedule as hs
from tvm_hopper.simulation import verify

TARGET = "nvidia/nvidia-h200"


@pytest.mark.parametrize(("dtype", "shared"), [("float16", "float32"), ("bfloat16", "bfloat16")])
def test_what_rows_share_that_begin_at_any_element(dtype, shared):
    """Vectors of both sides of a row's start are loaded and moved in registers."""
    x = te.placeholder((9, 151), dtype, "X")
    w = te.placeholder((151,), shared, "W")
    k = te.reduce_axis((0, 151), "k")
    wide = te.compute((9, 151), lambda i, j: x[i, j].astype("float32"), "F")
    total = te.compute((9,), lambda i: te.sum(wide[i, k] * wide[i, k], k), "S")
    scaled = te.compute(
        (9, 151), lambda i, j: (wide[i, j] * total[i] * w[j].astype("float32")).astype(dtype), "Y"
    )
    mod = te.create_prim_func([x, w, scaled])
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch)
    verify(sch, against=mod, runs=(("on_wait", 0),)).require_clean()
    assert "both" in tvm.compile(sch.mod, TARGET).mod.imports[0].inspect_source()


def test_a_mask_and_what_it_chooses():
    """A byte an element, eight at once; the scale is loaded in front of the choice."""
    x, z = (te.placeholder((64, 64), "float16", n) for n in "XZ")
    scale, mask = te.placeholder((64, 1), "float16", "S"), te.placeholder((64, 64), "bool", "M")
    y = te.compute(
        (64, 64), lambda i, j: tirx.Select(mask[i, j], x[i, j] * scale[i, 0], z[i, j]), "Y"
    )
    mod = te.create_prim_func([x, z, scale, mask, y])
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch)
    verify(sch, against=mod, runs=(("on_wait", 0),)).require_clean()
    text = tvm.compile(sch.mod, TARGET).mod.imports[0].inspect_source()
    assert "half loaded = S_ptr" in text
    assert "*(int2*)(((signed char*)M_local_ptr)" in text
