"""Rows of a tile that integers in memory place and count.

    for r in range(128):
        tile[r, ...] = if_then_else(
            j * 128 + r < n[b], pages[table[j * 8 + r // 16], r % 16, ...], 0)
  ->
    for a, c in grid(8, 16): tile[a * 16 + c, ...] = pages[table[j * 8 + a], c, ...]
    each value of a is a box of its own; n[b] - j * 128 rows are left

A map ends where the host knows. A box of which some rows are left is loaded row by row; further
rows are loads beyond the map, which the hardware fills with zeros.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.bounds import as_less_than, find_bounds
from tvm_hopper.analysis.effects import writes
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts import tensor_map as maps
from tvm_hopper.transforms.common.transfer import Transfer

MOST_COUNTED_ROWS = 16  # of a box, where it may have to be loaded row by row


def find_table_loop(copy: Transfer) -> ir.For | None:
    """Return the outermost loop over rows, where a tensor says where each of its values lies."""
    loops = [x for x in copy.loops[1:-1] if not ir.is_const(x.extent, 1)]
    if len(loops) < 2:
        return None
    var = loops[0].loop_var
    plain = [
        ir.replace(x, ir.TensorLoad, lambda y: tirx.IntImm(ir.dtype_of(y), 0))
        for x in copy.tensor.indices
    ]
    moves = ir.depends_on(list(copy.tensor.indices), [var])
    return loops[0] if moves and not ir.depends_on(plain, [var]) else None


def count_rows(copy: Transfer, around: tuple[ir.For, ...]) -> tuple[Transfer, Any]:
    """Return a copy without the bound of its rows that memory tells, and how many rows are left.

    None where there is no such bound. `around` are the loops of the kernel.
    """
    terms = [] if copy.condition is None else ir.conjuncts(copy.condition)
    own = [x.loop_var for x in copy.loops]
    row = copy.tile.indices[1] - copy.tile.start(copy.loops)[1]
    for term in terms:
        ordered = as_less_than(term)
        if ordered is None or not ir.find_all(term, ir.TensorLoad):
            continue
        loops = (*around, *copy.loops)
        known = find_bounds(term, copy.tensor.indices, tuple(copy.tensor.buffer.shape), loops)
        if known is not None and not ir.find_all(list(known.below), ir.TensorLoad):
            continue  # where a map ends
        low, high = ordered
        left = ir.simplify(high - low + ir.cast_like(row, low))
        if not ir.depends_on(left, own):
            others = [x for x in terms if not x.same_as(term)]
            return replace(copy, condition=ir.conjunction(others) if others else None), left
    return copy, None


def check_places(kernel: ir.For, copy: Transfer) -> None:
    """Refuse places that the kernel stores: a load may read them at any time."""
    for load in ir.find_all([*copy.tensor.indices, copy.condition], ir.TensorLoad):
        if writes(kernel, load.source):
            raise cannot_lower(
                copy.where,
                f"stores to {load.source.name}, which says where rows lie, in the same kernel",
                "places that the kernel does not write",
                "write them in a kernel before",
            )


def check_single_rows(copy: Transfer, rows: list[ir.For]) -> None:
    """Refuse rows of which a load cannot fill each alone."""
    row_bytes = int(copy.tile.buffer.shape[2]) * copy.tile.element_bytes
    if len(rows) != 1 or row_bytes % maps.SHARED_ALIGNMENT:
        raise cannot_lower(
            copy.where,
            f"a number of rows of {row_bytes} bytes, in {len(rows)} loops, that memory tells",
            f"one loop over rows of a multiple of {maps.SHARED_ALIGNMENT} bytes: a load may begin "
            "at each, and those beyond the last are filled by loads of their own",
            'request "cp_async"',
        )
