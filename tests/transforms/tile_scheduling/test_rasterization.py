"""Places of tiles in the output: each once, and along a curve next to the one before."""

import itertools

import numpy as np
import pytest
import tvm
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.keys import HILBERT
from tvm_hopper.transforms.tile_scheduling.rasterization import place_tile
from tvm_hopper.transforms.tile_scheduling.schedule_tiles_plan import TileSchedule


def loop(name, extent):
    var = ir.Var(name, "int32")
    return tirx.For(var, 0, extent, ir.ForKind.SERIAL, tirx.Evaluate(0))


def walk(rows, columns, group, curve=HILBERT, symbolic=False):
    """Return (row, column) of each tile in order, of so many rows, perhaps known at run time."""
    m = ir.Var("m", "int32")
    axes = loop("by", m if symbolic else rows), loop("bx", columns)
    order = TileSchedule(None, *axes, group, None, curve=curve)
    linear = ir.Var("linear", "int32")
    binds, tile = place_tile(order, linear)
    out = tirx.decl_buffer((rows * columns, 2), "int32", "out")
    stores = [
        tirx.BufferStore(out, tile[axis.loop_var], [linear, n]) for n, axis in enumerate(axes)
    ]
    body = tirx.For(linear, 0, rows * columns, ir.ForKind.SERIAL, ir.seq(binds, stores))
    func = tirx.PrimFunc([m, out], body)
    built = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), "llvm")
    found = tvm.runtime.tensor(np.zeros((rows * columns, 2), "int32"))
    built["main"](rows, found)
    return [tuple(place) for place in found.numpy().tolist()]


def test_a_square():
    numbered = {place: n for n, place in enumerate(walk(4, 4, 4))}
    lines = [" ".join(str(numbered[y, x]) for x in range(4)) for y in range(4)]
    assert lines == ["0 1 14 15", "3 2 13 12", "4 7 8 11", "5 6 9 10"]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "group"), [(8, 8, 8), (11, 10, 5), (3, 9, 8), (9, 3, 2), (20, 19, 1 << 20)]
)
def test_every_tile_has_one_place(rows, columns, group, symbolic):
    whole = {(y, x) for y in range(rows) for x in range(columns)}
    places = walk(rows, columns, group, symbolic=symbolic)
    assert len(places) == len(whole)
    assert set(places) == whole


def test_neighbours_follow_one_another_over_squares():
    places = walk(8, 24, 8)
    steps = [abs(a - c) + abs(b - d) for (a, b), (c, d) in itertools.pairwise(places)]
    assert set(steps) == {1}


@pytest.mark.parametrize(("rows", "group", "taken"), [(8, 7, 4), (3, 8, 2), (200, 100, 64)])
def test_groups_of_a_curve_are_powers_of_two(rows, group, taken):
    order = TileSchedule(None, loop("by", rows), loop("bx", 4), group, None, curve=HILBERT)
    assert (order.rows_together, order.group_rows, order.follows_curve) == (taken, taken, True)


def test_one_row_is_no_curve():
    order = TileSchedule(None, loop("by", 8), loop("bx", 4), 1, None, curve=HILBERT)
    assert not order.follows_curve
    assert walk(3, 3, 1) == walk(3, 3, 1, curve=None)
