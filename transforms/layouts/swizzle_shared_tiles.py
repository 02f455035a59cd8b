"""Give each shared tile the layout (panels, swizzle) that all its readers and writers can use.

    A_shared = alloc((128, 128), "float16", "shared.dyn")
    for r, c in grid(128, 128):                      annotations={"tvm_hopper.async_copy": "tma"}
        A_shared[r, c] = A[m + r, k + c]
    ... = A_shared[i, j]
  ->
    A_shared = alloc((2, 128, 64), "float16", "shared.dyn", align=1024)
    for p, r, s in grid(2, 128, 64):                       + {"tvm_hopper.swizzle": 128}
        A_shared[p, r, s] = A[m + r, k + p * 64 + s]
    ... = A_shared[j // 64, i, j % 64]

A row of a panel is as long as a box of TMA is wide: as the swizzle pattern where there is one, else
as the tile's rows if a box holds them.  A tile of three dimensions or more has all but the last one
as its rows.  An array that no copy touches gets extents where TVM found no bound.

Before: a tile is filled by one copy nest at most. After: every tile that an `async_copy` fills or
empties is [panels, rows, span] and its copies name the swizzle; a copy loops over panels, rows and
a span, and a guarded load zero-fills the other elements. A vector begins at a multiple of its size
in every row of a tile.
Not here: the choice of a layout (swizzle_shared_tiles_plan.py); the XOR pattern, which begins where
hardware touches the tile (lower_async_copies.py); tiles that no copy touches.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from tvm import ir as tvm_ir, sym, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests.keys import SWIZZLE
from tvm_hopper.transforms.common.explain_notes import Note, RemarkNote
from tvm_hopper.transforms.common.shared_layout import SharedLayout
from tvm_hopper.transforms.common.transfer import Transfer
from tvm_hopper.transforms.kernel_pass import function_pass, map_noted
from tvm_hopper.transforms.legalize.legalize_vectors import cut_unaligned
from tvm_hopper.transforms.mechanisms.table import mechanism_of

from .swizzle_shared_tiles_plan import (
    TileLayout,
    has_bounds,
    plan_layouts,
    plan_shapes,
    takes_address,
)
from .warp_group_tile_parts import Share, loop_over


def rewrite_layouts(kernel: ir.For, plan: tuple[TileLayout, ...]) -> ir.For:
    """Replace tiles, the nests that fill them, and every other access."""
    analyzer = sym.Analyzer()
    for var, loop in {loop.loop_var: loop for loop in ir.find_all(kernel, ir.For)}.items():
        analyzer.bind(var, ir.range_of(loop))
    for tile in plan:
        kernel = _rewrite_tile(kernel, tile, analyzer)
    return kernel


def _rewrite_tile(body: ir.Stmt, tile: TileLayout, analyzer: sym.Analyzer) -> ir.Stmt:
    old, layout = tile.copies[0].tile.buffer, tile.layout
    new = ir.new_buffer(old.name, layout.shape, layout.dtype, old.scope(), layout.alignment)

    def index(indices: list[Any]) -> list[Any]:
        # with the loops' ranges, so that what runs along a span stays plain, and vectors whole
        return [analyzer.simplify(x) for x in layout.panel_index(*tile.flatten(indices))]

    def region(ranges: list[Any]) -> list[Any]:
        return _region(tile, ranges)

    pairs = zip(tile.copies, tile.shares, strict=True)
    nests = {copy.nest: _copy_nest(tile, copy, share, new) for copy, share in pairs}
    body = ir.replace_nodes(body, ir.Stmt, nests)
    return ir.reallocate(ir.reindex(body, old, new, index, region), old, new)


def rewrite_shapes(kernel: ir.For, shapes: dict[ir.Var, tuple[int, ...]]) -> ir.For:
    """Give tiles other extents."""
    for old, shape in shapes.items():
        alignment = int(old.ty.data_alignment)
        new = ir.new_buffer(old.name, shape, ir.dtype_of(old), old.scope(), alignment)
        kernel = ir.reindex(kernel, old, new, lambda indices: indices, lambda ranges: ranges)
        kernel = ir.reallocate(kernel, old, new)
    return kernel


def _region(tile: TileLayout, ranges: list[Any]) -> list[Any]:
    """Return the part of the new tile that holds a part of the old one; a span is never cut."""
    layout = tile.layout
    *outer, column = (ranges[axis] for axis in tile.axes)
    whole = tvm_ir.Range(0, layout.rows)
    if not outer:
        row = whole
    elif all(ir.is_const(x.extent, 1) for x in outer[:-1]):
        row, _ = tile.flatten([x.min for x in ranges])
        row = tvm_ir.Range.from_min_extent(ir.simplify(row), outer[-1].extent)
    else:
        row = whole
    width = ir.static_int(column.extent)
    if width is not None and width % layout.span == 0:
        first = ir.simplify(column.min // layout.span)
        panels = tvm_ir.Range.from_min_extent(first, width // layout.span)
    else:
        panels = tvm_ir.Range(0, layout.panels)
    return [panels, row, tvm_ir.Range(0, layout.span)]


def _copy_nest(tile: TileLayout, copy: Transfer, share: Share, new: ir.Var) -> ir.Stmt:
    """Build the loops over panels, each dimension of the rows and a span around the same copy."""
    layout = tile.layout
    *row_parts, column_parts = (share.parts[axis] for axis in tile.axes)
    row_extents = [n // parts for n, parts in zip(tile.row_extents, row_parts, strict=True)]
    # A copy may take one row of those that the tile holds: it has no loop over them.
    single = {axis for axis in tile.axes[:-1] if loop_over(copy, share, axis) is None}
    for place, axis in enumerate(tile.axes[:-1]):
        if axis in single:
            row_extents[place] = 1
    span = min(layout.span, layout.columns)
    extents = (layout.panels // column_parts, *(row_extents or (1,)), span)
    if len(extents) == 3:
        names = ["p", "r", "s"]
    else:
        names = ["p", *(f"r{i}" for i in range(len(tile.row_extents))), "s"]
    loops = [ir.Var(name, "int32") for name in names]
    p, *rows, s = loops
    at: dict[int, Any] = dict(zip(tile.axes[:-1], rows, strict=False))
    at |= {axis: at[axis] + ir.as_int32(copy.tile.indices[axis]) for axis in single}
    # rows and columns in the part that this copy moves
    row, _ = tile.flatten([at.get(axis, s) for axis in range(len(copy.tile.indices))])
    row = ir.simplify(row) if at else rows[0]
    at[tile.axes[-1]] = p * layout.span + s
    values = {x.loop_var: 0 for x in copy.loops if ir.is_const(x.extent, 1)}
    own = dict(zip(tile.axes, (*row_extents, layout.columns // column_parts), strict=True))
    bounds = []  # of a copy that takes less than the tile holds
    for axis in set(range(len(copy.tile.indices))) - set(at):  # of which the tile has one element
        if (loop := copy.tile.loop_of(axis)) is not None:
            values[loop.loop_var] = ir.cast_like(0, loop.loop_var)
    for axis, value in at.items():
        if axis in single:
            continue
        loop = loop_over(copy, share, axis)
        assert loop is not None, "a planned copy has a loop over each axis"
        values[loop.loop_var] = value
        if (ir.static_int(loop.extent) or 0) < own[axis]:
            bounds.append(value < ir.cast_like(loop.extent, value))
    if not share.is_whole:
        first, column = tile.flatten(list(share.starts))
        row, p = ir.simplify(first + row), ir.simplify(column // layout.span + p)
    keeps = copy.is_partial and not _is_filled(copy)
    predicate = True if not keeps else _without_true(copy.condition, values)
    for bound in bounds:
        predicate = bound if ir.is_const(predicate, 1) else tirx.And(predicate, bound)
    block = _copy_block(layout, copy, new, values, [p, row, s])
    stmt: ir.Stmt = ir.SBlockRealize([], predicate, block)
    for var, extent in reversed(list(zip(loops, extents, strict=True))):
        stmt = ir.For(var, 0, extent, ir.ForKind.SERIAL, stmt)
    return stmt


def _without_true(condition: Any, values: dict[ir.Var, Any]) -> Any:
    """Return a condition where variables have values; what then holds for sure is left out."""
    terms = [ir.substitute(term, values) for term in ir.conjuncts(condition)]
    terms = [term for term in terms if not ir.is_const(ir.simplify(term), 1)]
    return functools.reduce(tirx.And, terms) if terms else True


def _copy_block(
    layout: SharedLayout, copy: Transfer, new: ir.Var, values: dict[ir.Var, Any], place: list[Any]
) -> ir.SBlock:
    annotations = {**copy.block.annotations, SWIZZLE: layout.swizzle}
    block = ir.with_block(copy.block, annotations=annotations)
    if copy.is_partial and _is_filled(copy):
        load = tirx.BufferLoad(copy.src.buffer, list(copy.src.indices))
        value = tirx.if_then_else(copy.condition, load, copy.fill)
        store = ir.BufferStore(copy.dst.buffer, value, list(copy.dst.indices))
        block = ir.with_block(block, body=store)
    element = [tvm_ir.Range.from_min_extent(x, 1) for x in place]
    block = ir.substitute(block, values)
    return ir.reindex(block, copy.tile.buffer, new, lambda _: place, lambda _: element)


def _is_filled(copy: Transfer) -> bool:
    """Tell whether hardware fills what a predicate leaves out of a tile."""
    return copy.fills_shared and mechanism_of(copy).fills_by_bounds


def _layout_shared(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Lay out the shared tiles of one function; `explain` knows boxes from tensor maps."""

    def lay_out(kernel: ir.For, notes: list[Note]) -> ir.For:
        plan = plan_layouts(kernel)
        notes += [
            RemarkNote(f"tile {_name(tile)}: swizzle {tile.layout.swizzle} B")
            for tile in plan
            if tile.layout.swizzle and mechanism_of(tile.copies[0]).notes is None
        ]
        after = rewrite_layouts(kernel, plan)
        after = rewrite_shapes(after, plan_shapes(after))
        after = rewrite_shapes(after, plan_bounds_of_tiles(after))
        assert not plan_layouts(after), "SwizzleSharedTiles left a tile without a layout"
        return cut_unaligned(after)

    return map_noted(func, lay_out)


SwizzleSharedTiles = function_pass("SwizzleSharedTiles", _layout_shared)


def _name(tile: TileLayout) -> str:
    return str(tile.copies[0].tile.buffer.name)


# -- bound the arrays of a kernel for which TVM found no bound, by their accesses
#     Y = alloc((2147483647, 64), "shared.dyn")                 rows of a tile that a symbol may cut
#     for i in range(min(8, m)): Y[i, tx] = ...
#   ->
#     Y = alloc((8, 64), "shared.dyn")
#
# A tile that hardware copies has the extents of its copy (swizzle_shared_tiles_plan.py); this is
# about the others.


LARGEST = (1 << 31) - 1  # an extent; bounds of products of symbols are larger than TVM's integers


def plan_bounds_of_tiles(kernel: ir.For) -> dict[ir.Var, tuple[int, ...]]:
    """Return new extents for arrays without bounds; refuse those without known bounds."""
    blocks = ir.find_all(kernel, ir.SBlock)
    unbounded = [x for block in blocks for x in block.alloc_buffers if not has_bounds(x)]
    return {buffer: _extents(kernel, buffer) for buffer in unbounded}


def _extents(kernel: ir.For, buffer: ir.Var) -> tuple[int, ...]:
    analyzer = sym.Analyzer()
    for loop in ir.find_all(kernel, ir.For):
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    blocks = ir.find_all(kernel, ir.SBlockRealize, lambda x: not ir.is_const(x.predicate, 1))
    accesses = ir.accesses(kernel, buffer)
    is_within_reach = not takes_address(kernel, buffer)  # accesses through it are unknown
    needed = [1] * len(buffer.shape)
    for access in accesses if is_within_reach else ():
        with contextlib.ExitStack() as known:
            for block in blocks:
                if ir.uses_node(block, access):
                    known.enter_context(analyzer.constraint_scope(block.predicate))
            tops = [int(analyzer.const_int_bound(x).max_value) for x in access.indices]
        needed = [max(size, top + 1) for size, top in zip(needed, tops, strict=True)]
    kept = [
        size if old is None else min(size, old)
        for size, old in zip(needed, map(ir.static_int, buffer.shape), strict=True)
    ]
    if not is_within_reach or max(kept) > LARGEST:
        raise _not_bounded(buffer)
    new: Any = ir.new_buffer(buffer.name, tuple(kept), ir.dtype_of(buffer), buffer.scope())
    if not has_bounds(new):
        raise _not_bounded(buffer)
    return tuple(kept)


def _not_bounded(buffer: ir.Var) -> Exception:
    return cannot_lower(
        f"tile {buffer.name}",
        f"a shape {list(buffer.shape)} without known bounds",
        "indices within bounds that are known now",
        "split its loops by constants",
    )
