"""Boxes of copies that are dealt out to threads, under conditions of several kinds."""

from __future__ import annotations

import pytest
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.box import find_box

NAMES = ("row", "column")


def loop(var, extent: int) -> ir.For:
    return ir.For(var, 0, extent, ir.ForKind.SERIAL, tirx.Evaluate(0))


@pytest.fixture
def nest():
    """Return loops of 6 turns of 256 threads, the number of an element, and where a tile begins."""
    turn, thread, first = (ir.Var(name, "int32") for name in ("turn", "tx", "first"))
    return [loop(turn, 6), loop(thread, 256)], turn * 256 + thread, first


def test_a_tile_that_threads_do_not_divide(nest):
    loops, number, _ = nest
    box = find_box([number // 130, number % 130], loops, NAMES, number < 1300)
    assert box is not None
    assert box.extents == (10, 130)


def test_what_cuts_the_tile_where_its_tensor_ends_is_not_about_the_box(nest):
    loops, number, first = nest
    inside = tirx.And(first + number // 130 < 16384, number % 130 + first < 16384)
    condition = tirx.And(inside, number < 1300)
    box = find_box([number // 130, number % 130], loops, NAMES, condition)
    assert box is not None
    assert box.extents == (10, 130)
    row, _ = box.loop_vars
    assert ir.uses(box.at_element(first + number // 130), row)


def test_without_the_condition_some_are_stored_twice(nest):
    loops, number, first = nest
    condition = first + number // 130 < 16384
    assert find_box([number // 130 % 10, number % 130], loops, NAMES, condition) is None
