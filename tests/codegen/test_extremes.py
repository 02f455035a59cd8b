"""Maxima and minima keep NaN in machine code, as they do in TIR, numpy and the simulator."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm import s_tir, te, tirx

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.codegen_patches.extremes import add_extremes
from tvm_hopper.testing import workloads

TARGET = "nvidia/nvidia-h200"


def clip(dtype: str, wide: bool = False) -> s_tir.Schedule:
    """Schedule Y = min(max(X, 0), 1), or max(X, 0) in float32."""
    x = te.placeholder((4, 256), dtype, name="X")
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)

    def value(i, j):
        if wide:
            return tirx.Max(x[i, j].astype("float32"), tirx.const(0, "float32")).astype(dtype)
        return tirx.Min(tirx.Max(x[i, j], zero), one)

    sch = s_tir.Schedule(te.create_prim_func([x, te.compute(x.shape, value, name="Y")]))
    hs.pointwise(sch)
    return sch


def row_maxima(dtype: str) -> s_tir.Schedule:
    """Schedule the greatest of each row, by four warps a row."""
    x = te.placeholder((4, 2048), dtype, name="X")
    k = te.reduce_axis((0, 2048), "k")
    m = te.compute((4,), lambda i: te.max(x[i, k].astype("float32"), k), name="Y")
    sch = s_tir.Schedule(te.create_prim_func([x, m]))
    hs.row_reduction(sch)
    return sch


def instructions(sch: s_tir.Schedule) -> list[str]:
    """Return the names of the instructions that may drop a NaN, and of those that do not."""
    sass = str(tvm_hopper.sass(tvm.compile(sch.mod, target=TARGET)))
    return re.findall(r"\b(?:[FH]MNMX|DSETP|HSETP2|F2FP)[.\w]*", sass)


@pytest.mark.parametrize(
    ("make", "want"),
    [
        (lambda: clip("float32"), {"FMNMX.NAN"}),
        (lambda: clip("float16"), {"HMNMX2.NAN"}),
        (lambda: clip("bfloat16"), {"HMNMX2.BF16_V2.NAN"}),
        (lambda: clip("bfloat16", wide=True), {"F2FP.RELU.BF16.F32.PACK_AB"}),
        (lambda: row_maxima("bfloat16"), {"FMNMX.NAN"}),
    ],
    ids=["float32", "float16", "bfloat16", "rounded", "rows"],
)
def test_each_is_one_instruction_that_keeps_nan(make, want):
    assert set(instructions(make())) == want


def test_of_doubles_an_operand_that_is_nan_is_taken():
    found = instructions(clip("float64"))
    assert found
    assert not [x for x in found if "MAX" in x or "MIN" in x]  # DSETP.MAX.AND drops NaN
    assert any(re.search(r"\.[GL]TU\.", x) for x in found)  # unordered


def test_behind_a_product_zero_is_a_part_of_rounding():
    mod = workloads.matmul(256, 256, 128, "NT", "float16", "float16", epilogue=("bias_col", "relu"))
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig((128, 64, 64), consumers=2, store="tma"))
    assert set(instructions(sch)) == {"F2FP.RELU.F16.F32.PACK_AB"}


def test_a_text_without_maxima_of_floats_stays():
    assert add_extremes("text", [clip("int32").mod["main"]]) == "text"
