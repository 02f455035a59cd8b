"""Rasterization: map the number of a tile to its row and column.

Groups of rows of tiles follow one another; inside of a group, columns do, each walked down. With a
Hilbert curve, squares of a group do. In each square the curve runs from the top left tile to the
top right one, where the next square begins:

    0  1  14 15 | 16 17         neighbours in the order are neighbours in the output, so that tiles
    3  2  13 12 | 19 18         that run at the same time cover nearly a square, whatever their
    4  7   8 11 | 20            number is, and share rows of A and columns of B in L2
    5  6   9 10 | 21

Rows and columns that fill no square are walked column by column. Two bits of the
place make one of the row and one of the column, from the lowest.
"""

from __future__ import annotations

from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir

from .pairs_of_rows import place_in_pairs
from .schedule_tiles_plan import TileSchedule


class _Binds:
    """Names for values, in the order in which they are computed."""

    def __init__(self) -> None:
        self.made: list[tirx.Bind] = []

    def __call__(self, name: str, value: Any) -> ir.Var:
        var = ir.Var(name, "int32")
        self.made.append(tirx.Bind(var, ir.simplify(value)))
        return var


def place_tile(order: TileSchedule, linear_index: Any) -> tuple[list[tirx.Bind], dict[Any, Any]]:
    """Return what is computed from a place in the order, and the tile's row and column by axis."""
    num_rows, num_columns = order.num_rows, ir.as_int32(order.columns.extent)
    bind = _Binds()
    if order.in_pairs:
        row, column = place_in_pairs(order, bind("linear", linear_index))
        row, column = bind("tile_y", row), bind("tile_x", column)
        return bind.made, {order.rows.loop_var: row, order.columns.loop_var: column}
    group = order.group_rows
    if not isinstance(group, int):
        group = bind("group", group)
    in_group: Any = ir.simplify(num_columns * group)
    if ir.static_int(in_group) is None:
        in_group = bind("in_group", in_group)
    linear = bind("linear", linear_index)
    first = bind("first", _quotient(linear, in_group) * group)
    rows: Any = tirx.IntImm("int32", group) if isinstance(group, int) else group
    is_whole = _divides(group, num_rows)
    if not is_whole:
        rows = bind("rows", tirx.min(num_rows - first, group))
    inside = bind("inside", _remainder(linear, in_group))
    if order.follows_curve:
        inside = bind("along", _along_curve(bind, inside, group, rows, num_columns, is_whole))
    tile_y = bind("tile_y", first + tirx.truncmod(inside, rows))
    tile_x = bind("tile_x", tirx.truncdiv(inside, rows))
    return bind.made, {order.rows.loop_var: tile_y, order.columns.loop_var: tile_x}


def _along_curve(
    bind: _Binds, inside: ir.Var, side: int, rows: Any, num_columns: Any, is_whole: bool
) -> Any:
    """Return the place, in a walk down the columns, of a tile on the curves through a group."""
    square = bind("square", inside // (side * side))
    left = bind("left", inside % (side * side))
    x: Any = tirx.IntImm("int32", 0)
    y: Any = x
    size = 1
    while size < side:  # a square of so many tiles is turned into its quarter of one twice as wide
        right = bind("right", (left >> 1) & 1)
        down = bind("down", (left ^ right) & 1)
        turns = down == 0
        flips = tirx.And(turns, right == 1)
        from_x = bind("from_x", tirx.Select(flips, size - 1 - x, x))
        from_y = bind("from_y", tirx.Select(flips, size - 1 - y, y))
        x = bind("x", tirx.Select(turns, from_y, from_x) + right * size)
        y = bind("y", tirx.Select(turns, from_x, from_y) + down * size)
        left = bind("left", left >> 2)
        size *= 2
    on_curve = square < _quotient(num_columns, side)
    if not is_whole:
        on_curve = tirx.And(on_curve, rows == side)
    return tirx.Select(on_curve, (square * side + x) * side + y, inside)


def _divides(group: Any, rows: Any) -> bool:
    if not isinstance(group, int):
        return False
    known = sym.Analyzer().modular_set(ir.simplify(rows))  # `rows % group` may not fit 32 bits
    return int(known.coeff) % group == 0 and int(known.base) % group == 0


# Nothing here is negative, which a floor division by what only run time knows would have to check.


def _quotient(value: Any, by: Any) -> Any:
    return value // by if ir.static_int(by) else tirx.truncdiv(value, by)


def _remainder(value: Any, by: Any) -> Any:
    return value % by if ir.static_int(by) else tirx.truncmod(value, by)
