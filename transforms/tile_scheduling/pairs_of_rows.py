"""Pairs of tiles, whose work is even where it grows along a row. Part of ScheduleTiles.

Of rows 2 p and 2 p + 1 of C columns a thread block takes a tile and the mirrored one: (2 p, x),
then (2 p + 1, C - 1 - x). The last of an odd number of rows has tiles alone. With 3 rows of 4
columns and 2 blocks:

    block 0: (0, 0) (1, 3), (0, 2) (1, 1), (2, 0), (2, 2)
    block 1: (0, 1) (1, 2), (0, 3) (1, 0), (2, 1), (2, 3)
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir

from .schedule_tiles_plan import TileSchedule


def _sizes(order: TileSchedule) -> tuple[Any, Any, Any]:
    """Return rows, columns, and the number of pairs."""
    rows, columns = ir.as_int32(order.rows.extent), ir.as_int32(order.columns.extent)
    return rows, columns, ir.simplify(tirx.truncdiv(rows, 2) * columns)


def _pairs_of_block(order: TileSchedule) -> Any:
    """Return how many pairs a block takes; none where its number is beyond them."""
    _, _, pairs = _sizes(order)
    first, grid = ir.as_int32(order.columns.loop_var), order.grid
    left = tirx.max(pairs - first, 0)
    return ir.simplify(tirx.truncdiv(left + grid - 1, grid))


def tiles_of_pairs(order: TileSchedule) -> Any:
    """Return the number of tiles of a thread block."""
    first, grid = ir.as_int32(order.columns.loop_var), order.grid
    shares = tirx.truncdiv(order.num_shares - first + grid - 1, grid)
    return ir.simplify(shares + _pairs_of_block(order))


def place_of_pair(order: TileSchedule, tile: ir.Var) -> Any:
    """Return the place of a block's tile in the order of all, in which pairs are neighbours."""
    rows, _, pairs = _sizes(order)
    block, grid = ir.as_int32(order.columns.loop_var), order.grid
    in_pair = 2 * (block + tirx.truncdiv(tile, 2) * grid) + tirx.truncmod(tile, 2)
    if _is_even(rows):
        return in_pair
    own = _pairs_of_block(order)
    return tirx.Select(tile < 2 * own, in_pair, pairs + block + (tile - own) * grid)


def place_in_pairs(order: TileSchedule, linear: ir.Var) -> tuple[Any, Any]:
    """Return row and column of a place."""
    rows, columns, pairs = _sizes(order)
    pair, second = tirx.truncdiv(linear, 2), tirx.truncmod(linear, 2)
    x = tirx.truncmod(pair, columns)
    row = tirx.truncdiv(pair, columns) * 2 + second
    column = tirx.Select(second.equal(0), x, columns - 1 - x)
    if _is_even(rows):
        return row, column
    is_pair = linear < 2 * pairs
    return tirx.Select(is_pair, row, rows - 1), tirx.Select(is_pair, column, linear - 2 * pairs)


def _is_even(rows: Any) -> bool:
    known = ir.static_int(rows)
    return known is not None and known % 2 == 0
