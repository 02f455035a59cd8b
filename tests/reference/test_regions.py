"""Which parts of buffers and ranges of loops an output's box needs."""

from __future__ import annotations

import pytest
from tvm import ir, te, tirx
from tvm.script import tirx as T

from tvm_hopper.reference.plain import PlainProgramError, read
from tvm_hopper.reference.regions import infer, interval, narrow
from tvm_hopper.testing import forms, workloads

from .programs import CASES


def needs(func, *boxes, sizes=None):
    program = read(func)
    by_name = {str(b.name): b for b in program.buffers}
    found = infer(program, sizes or {}, dict(zip(program.outputs, boxes, strict=True)))
    return {name: found.boxes.get(buffer) for name, buffer in by_name.items()}, found, program


def test_a_tile_of_a_product_needs_rows_of_both_operands():
    product = workloads.matmul(4096, 4096, 4096, epilogue=("bias_col",))["main"]
    boxes, found, _ = needs(product, ((128, 255), (64, 127)))
    assert boxes["A"] == ((128, 255), (0, 4095))
    assert boxes["B"] == ((64, 127), (0, 4095))
    assert boxes["bias_col"] == ((64, 127),)
    assert boxes["C"] == ((128, 255), (64, 127))
    assert found.work < 2.1 * 128 * 64 * 4096


def test_a_slice_is_shifted():
    boxes, _, _ = needs(forms.slices(64, 64, 32, "float16")["main"], ((5, 6), (16, 20)))
    assert boxes["A"] == ((16, 17), (8, 39))
    assert boxes["B"] == ((7, 11), (0, 31))


def test_a_split_loop_is_narrowed():
    boxes, found, _ = needs(CASES["fused_transpose"]().func, ((3, 5), (2, 4)))
    assert boxes["X"] == ((0, 11), (3, 5))
    (ranges,) = found.ranges.values()
    assert ranges == (36, 71)


def test_a_scan_needs_all_that_is_before():
    boxes, _, _ = needs(CASES["prefix_sums"]().func, ((2, 3), (9, 12)))
    assert boxes["X"] == ((2, 3), (0, 29))  # the whole row: it grew for too long


def test_a_window_needs_its_neighbors():
    boxes, _, _ = needs(CASES["convolution"]().func, ((4, 5), (0, 3), (0, 5)))
    assert boxes["padded"] == ((4, 7), (0, 5), (0, 7))
    assert boxes["X"] == ((3, 6), (0, 4), (0, 7))


def test_what_is_not_needed_does_not_run():
    boxes, _, program = needs(CASES["two_products"]().func, ((1, 2), (3, 4)), ((0, 0), (0, 0)))
    assert boxes["half"] == ((0, 2), (0, 23))
    boxes = infer(program, {}, {program.outputs[0]: ((1, 2), (3, 4))}).boxes
    assert program.outputs[1] not in boxes


def test_an_index_from_data_needs_all_unless_it_is_given():
    boxes, _, program = needs(CASES["rows_by_index"]().func, ((2, 3), (4, 5)))
    assert boxes["X"] == ((0, 15), (4, 5))
    x, at, y = program.params
    given = {at: [9, 9, 7, 6, *range(12)]}
    assert infer(program, {}, {y: ((2, 3), (4, 5))}, given).boxes[x] == ((6, 7), (4, 5))


def test_an_extent_from_data_is_refused():
    @T.prim_func(s_tir=True)
    def main(N: T.Buffer((1,), "int32"), Y: T.Buffer((8,), "float32")):
        for i in range(N[0]):
            Y[i] = T.float32(1)

    with pytest.raises(PlainProgramError, match=r"loop i: found an extent .*, which follows fr"):
        needs(main, ((0, 1),))


def test_a_shape_that_nothing_tells_is_refused():
    mod = workloads.matmul("m", 64, 32)
    with pytest.raises(PlainProgramError, match="buffer A: found an extent m; need one that"):
        needs(mod["main"], ((0, 1), (0, 1)))


X, Y = tirx.Var("x", "int32"), tirx.Var("y", "int32")


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        (X + Y * 4, (8, 23)),
        (X - Y, (-5, 1)),
        (tirx.floordiv(X, 3), (0, 1)),
        (tirx.floormod(X, 16), (0, 3)),
        (tirx.floormod(X + 14, 16), (0, 15)),
        (tirx.truncdiv(X, 2), (0, 1)),
        (tirx.truncmod(X, 2), (0, 1)),
        (tirx.Min(X, Y), (0, 3)),
        (tirx.Max(X, Y), (2, 5)),
        (tirx.Select(X > 1, X, Y), (0, 5)),
        (tirx.if_then_else(X > 1, X, 9), (0, 9)),
        (tirx.Cast("int64", X) * -1, (-3, 0)),
        (X * tirx.Var("z", "int32"), None),
        (tirx.floordiv(X, Y - 3), None),
        (tirx.truncdiv(X - 1, 2), None),
    ],
)
def test_intervals(expr, found):
    assert interval(expr, {X: (0, 3), Y: (2, 5)}) == found


@pytest.mark.parametrize(
    ("expr", "sides", "x"),
    [
        (X + 3, (10, 12), (7, 9)),
        (X * 8 + Y, (16, 23), (2, 2)),
        (20 - X, (5, 8), (12, 15)),
        (tirx.floordiv(X, 4), (1, 2), (4, 11)),
        (tirx.Cast("int64", X), (3, 50), (3, 31)),
        (tirx.floormod(X, 4), (1, 2), (0, 31)),
    ],
)
def test_narrowing(expr, sides, x):
    ranges = {X: (0, 31), Y: (0, 7)}
    assert narrow(expr, sides, ranges, {})
    assert ranges[X] == x
    assert not narrow(X, (100, 101), ranges, {})


def test_te_and_script_are_read_alike():
    a = te.placeholder((8,), "float32", name="A")
    func = te.create_prim_func([a, te.compute((8,), lambda i: a[i] + 1.0, name="B")])
    assert isinstance(func.params[0], ir.Var)
    assert len(read(func).places) == 1
