"""Vectors that rows share wherever they begin, masks, and how work is dealt out: unusual shapes."""

import re

import pytest
import tvm
from tvm import s_tir, te, tirx
from tvm.target import Target

from tvm_hopper import ir, schedule as hs
from tvm_hopper.requests import keys
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


def chosen(helper, *tensors):
    """Schedule a program for an H200; return what was chosen, as text."""
    sch = s_tir.Schedule(te.create_prim_func(tensors))
    with Target(TARGET):
        helper(sch)
    (kernel,) = ir.kernels(sch.mod["main"])
    return str(kernel.annotations[keys.CHOSEN])


def test_threads_have_equal_parts_of_a_row():
    """576 vectors of a row are 2 of each of 288 threads, not of 64 of 512."""
    x, w = te.placeholder((4096, 2304), "float32", "X"), te.placeholder((2304,), "float32", "W")
    y = te.compute((4096, 2304), lambda i, j: te.erf(te.erf(x[i, j])) + w[j], "Y")
    text = chosen(hs.pointwise, x, w, y)
    count, chunks = (int(n) for n in re.match(r"(\d+) threads, (\d+) vectors", text).groups())
    assert 576 <= count * chunks < 576 + 32 * chunks


@pytest.mark.parametrize(("rows", "chunks"), [(512, 1), (65536, 2)])
def test_expensive_elements_are_blocks_of_half_the_size_where_waves_are_few(rows, chunks):
    x, z = (te.placeholder((rows, 4096), "float32", n) for n in "XZ")
    y = te.compute((rows, 4096), lambda i, j: te.sigmoid(te.erf(x[i, j])) + z[i, j], "Y")
    assert f", {chunks} vectors of 4 each" in chosen(hs.pointwise, x, z, y)


def test_two_rows_are_reduced_by_each_thread():
    """A barrier would take longer than the sum."""
    x = te.placeholder((512, 2, 256), "bfloat16", "X")
    k = te.reduce_axis((0, 2), "k")
    y = te.compute((512, 256), lambda i, j: te.sum(x[i, k, j].astype("float32"), k), "M")
    assert " x 1 threads, 2 vectors" in chosen(hs.column_reduction, x, y)


def test_what_takes_many_instructions_is_computed_once():
    x = te.placeholder((3904, 14336), "float32", "X")
    k, r = (te.reduce_axis((0, 14336), n) for n in "kr")
    f = te.compute((3904, 14336), lambda i, j: te.erf(te.erf(x[i, j])) * x[i, j], "F")
    s = te.compute((3904,), lambda i: te.sum(f[i, k], k), "S")
    q = te.compute((3904,), lambda i: te.sum(f[i, r] * s[i], r), "Q")
    y = te.compute((3904, 14336), lambda i, j: f[i, j] * q[i], "Y")
    assert "exponentials and the like twice" not in chosen(hs.row_reduction, x, y).split(";")[0]


def test_registers_of_what_odd_rows_share_are_counted():
    """Two weights of 51865 elements leave no room for 7 vectors of each of 1024 threads."""
    x = te.placeholder((2082, 51865), "bfloat16", "X")
    w, b = (te.placeholder((51865,), "bfloat16", n) for n in "WB")
    k = te.reduce_axis((0, 51865), "k")
    wide = te.compute((2082, 51865), lambda i, j: x[i, j].astype("float32"), "F")
    s = te.compute((2082,), lambda i: te.sum(wide[i, k] * wide[i, k], k), "S")
    y = te.compute(
        (2082, 51865), lambda i, j: (wide[i, j] * s[i]).astype("bfloat16") * w[j] + b[j], "Y"
    )
    assert "1024 threads a row, 7 vectors" not in chosen(hs.row_reduction, x, w, b, y).split(";")[0]
