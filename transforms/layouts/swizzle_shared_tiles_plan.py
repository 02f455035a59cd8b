"""Choose the swizzle and panels of a shared tile from the demands of its readers and writers.

    a copy by TMA       boxes: rows of at most 256 elements and of a multiple of 16 bytes, as long
                        as the swizzle pattern is wide where there is one
    a WGMMA block       the panels of a swizzle; its descriptors address them, so that the hardware
                        undoes the XOR
    an address taken    the tile as it was declared, one row after the other
    ldmatrix            rows of 16 bytes, wherever each one is
    plain loops         nothing: each access can go through `SharedLayout.index`
    a part of a tile    which each warp group copies by itself: whole panels, and rows from where
                        the pattern begins again
    a slot of a ring    starts where a box may land, at a multiple of 128 bytes

Rows that are no multiple of 16 bytes, such as those of a tile with a halo, are padded where TMA
alone fills the tile. A tile of one panel is padded to whole atoms of its swizzle or to 128 bytes.

Every layout here is [panels, rows, span]: a panel is as wide as one box, and has all of the tile's
rows. With nothing but plain loops around a copy rows stay as they are, in one panel where they fit
into a box; operands get the widest swizzle that divides their rows. So do tiles for accumulators,
whose accesses by eight rows it spreads over the banks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import gcd, prod
from typing import Any

from tvm import sym

from tvm_hopper import ir
from tvm_hopper.analysis.row_pointers import find_row_pointers, reads_rows
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.swizzle import CHUNK_BYTES, alignment, span_elements
from tvm_hopper.facts.tensor_map import MAX_BOX
from tvm_hopper.requests.keys import SWIZZLE, WGMMA
from tvm_hopper.transforms.common.copy_rules import check_partial
from tvm_hopper.transforms.common.shared_layout import (
    BOX_ALIGNMENT,
    Demand,
    SharedLayout,
    asked_swizzle,
)
from tvm_hopper.transforms.common.transfer import Transfer, find_transfers
from tvm_hopper.transforms.mechanisms.table import mechanism_of

from .warp_group_tile_parts import Share, find_share, fragment_stores, loop_over, widened

_NO_BOUND = 2**31 - 1  # TVM's extent of a dimension without known bounds
WIDEST_FIRST = (128, 64, 32, 0)  # fewer, longer boxes


@dataclass(frozen=True)
class TileLayout:
    """A tile that copies fill or empty, its axes longer than one, and the layout that was found.

    `row_extents` are those of all axes but the last; their product is the layout's rows.
    """

    copies: tuple[Transfer, ...]
    shares: tuple[Share, ...]  # what each of them moves
    axes: tuple[int, ...]
    row_extents: tuple[int, ...]
    layout: SharedLayout

    def flatten(self, indices: list[Any]) -> tuple[Any, Any]:
        """Return row and column of an element of the tile as it was declared."""
        *outer, column = (indices[axis] for axis in self.axes)
        row: Any = ir.cast_like(0, column)
        for index, extent in zip(outer, self.row_extents, strict=True):
            row = row * extent + index
        return row, column


def plan_layouts(kernel: ir.For) -> tuple[TileLayout, ...]:
    """Choose the layout of every tile that is copied and that has none yet."""
    tiles: list[list[Transfer]] = []
    for copy in find_transfers(kernel):
        own = next((x for x in tiles if x[0].tile.buffer.same_as(copy.tile.buffer)), None)
        if own is None:
            tiles.append([copy])
            continue
        if copy.fills_shared and any(other.fills_shared for other in own):
            raise cannot_lower(copy.where, "a second copy into one tile", "one copy per tile")
        own.append(copy)
    return tuple(
        _plan_tile(kernel, tile)
        for tile in tiles
        if _needs_layout(kernel, tile) and not all(map(_is_laid_out, tile))
    )


def _needs_layout(kernel: ir.For, copies: list[Transfer]) -> bool:
    """Tell whether something demands another layout of a tile than the declared one."""
    in_panels = any(mechanism_of(x).needs_panels or asked_swizzle(x) for x in copies)
    tile = copies[0].tile.buffer
    return in_panels or bool(_readers(kernel, tile) or reads_rows(kernel, tile))


def plan_shapes(kernel: ir.For) -> dict[ir.Var, tuple[int, ...]]:
    """Choose extents for tiles that are copied as they are declared, where that will not do.

    TVM's compact buffers are as small as a tensor may be at run time, and as large as an integer
    where it finds no bound. A tile that is cut has to take whole chunks again. What is larger than
    the copy stays: rows may be padded on purpose.
    """
    copies = sorted(find_transfers(kernel), key=lambda copy: copy.fills_shared)
    tiles = {copy.tile.buffer: copy for copy in copies}  # a load decides
    shapes = {
        tile: tuple(
            int(extent)
            if _will_do(copy, axis)
            else _static_extent(kernel, copy, find_share(kernel, copy), extent, axis)
            for axis, extent in enumerate(tile.shape)
        )
        for tile, copy in tiles.items()
    }
    return {
        tile: shape
        for tile, shape in shapes.items()
        if shape != tuple(map(ir.static_int, tile.shape))
    }


def has_bounds(tile: ir.Var) -> bool:
    """Tell whether TVM found a bound for each extent of a tile."""
    known = [ir.static_int(extent) for extent in tile.shape]
    return all(extent is not None and extent < _NO_BOUND for extent in known)


def _will_do(copy: Transfer, axis: int) -> bool:
    known, loop = ir.static_int(copy.tile.buffer.shape[axis]), copy.tile.loop_of(axis)
    if known is None or known >= _NO_BOUND:
        return False
    scheduled = ir.static_int(loop.extent) if loop is not None else None
    return not copy.fills_shared or scheduled is None or scheduled <= known


def _is_laid_out(copy: Transfer) -> bool:
    """Tell a tile in panels: no other has three dimensions and the alignment of its swizzle."""
    if SWIZZLE not in copy.block.annotations or len(copy.tile.buffer.shape) != 3:
        return False
    swizzle = int(copy.block.annotations[SWIZZLE])
    return int(copy.tile.buffer.ty.data_alignment) >= alignment(swizzle)


def _plan_tile(kernel: ir.For, copies: list[Transfer]) -> TileLayout:
    copies = sorted(copies, key=lambda copy: not copy.fills_shared)  # a load decides
    shares = [find_share(kernel, copy) for copy in copies]
    extents = _find_extents(kernel, copies[0], shares[0])
    for copy, share in zip(copies[1:], shares[1:], strict=True):
        own = _find_extents(kernel, copy, share, extents)
        if own != extents:
            raise cannot_lower(
                copy.where,
                f"{own} elements of {copy.tile.buffer.name}, of which another copy takes {extents}",
                "copies of the whole tile",
                "give one of them a separate tile",
            )
    demands = []
    for copy in copies:
        check_partial(kernel, copy)
        demands.append(mechanism_of(copy).demand(copy))
    if not copies[0].fills_shared:
        extents = widened(kernel, copies[0].tile.buffer, extents)
    axes = tuple(axis for axis, extent in enumerate(extents) if extent != 1)
    *outer, columns = (extents[axis] for axis in axes)
    for copy, share in zip(copies, shares, strict=True):
        if loop_over(copy, share, axes[-1]) is None:
            raise cannot_lower(
                copy.where,
                f"one column of the {columns} that {copy.tile.buffer.name} holds",
                "whole rows, or parts of them that a loop runs over",
                "let threads store what they hold (leave the asynchronous store out)",
            )
    layout = _solve(kernel, copies, shares, demands, axes, prod(outer), columns)
    return TileLayout(tuple(copies), tuple(shares), axes, tuple(outer), layout)


def _find_extents(
    kernel: ir.For, copy: Transfer, share: Share, others: list[int] | None = None
) -> list[int]:
    """Return the tile's extents, after checking that a loop runs over each longer than one.

    A store under a predicate may do with fewer elements than it has iterations: with those that
    `others` fill.
    """
    extents = [
        _static_extent(kernel, copy, share, extent, axis)
        for axis, extent in enumerate(copy.tile.buffer.shape)
    ]
    if others is not None and copy.is_partial and not copy.fills_shared:
        shape = [ir.static_int(extent) for extent in copy.tile.buffer.shape]
        triples = zip(shape, others, extents, strict=True)
        if all((need or 0) <= filled <= own for need, filled, own in triples):
            return others
    axes = [axis for axis, extent in enumerate(extents) if extent != 1]
    if not axes:
        raise cannot_lower(copy.where, "a tile of one element", "a tile of 16 bytes or more")
    loops = [loop for loop in copy.loops if not ir.is_const(loop.extent, 1)]
    over = [loop_over(copy, share, axis) for axis in axes]
    whole = len(loops) == len(axes) and all(
        loop is not None
        and ir.is_const(loop.min, 0)
        and ir.is_const(loop.extent, extents[axis] // share.parts[axis])
        for loop, axis in zip(over, axes, strict=True)
    )
    if not whole:
        raise cannot_lower(
            copy.where,
            f"loops {[f'{x.loop_var.name}<{x.extent}' for x in copy.loops]} that store at "
            f"{list(copy.tile.indices)}",
            f"one loop over each dimension of the whole tile {extents}"
            + ("" if copy.fills_shared else ", or of a warp group's part of it"),
            "leave the copy's loops as compute_at made them",
        )
    return extents


def _static_extent(kernel: ir.For, copy: Transfer, share: Share, extent: Any, axis: int) -> int:
    """Return a tile's extent: under a predicate that of the copy's loop, which it has been cut to.

    So tiles are as large as they were scheduled, however small the tensor is. A tile may also be
    declared larger than what the copy brings and others read, which TVM could not tell.
    """
    static, scheduled = ir.static_int(extent), share.tile[axis]
    if copy.is_partial and scheduled is not None and sym.Analyzer().can_prove(extent <= scheduled):
        return scheduled
    if (
        scheduled is not None
        and (static is None or scheduled < static)
        and _all_within(kernel, copy.tile.buffer, axis, scheduled)
    ):
        return scheduled
    if static is None:
        shape = list(copy.tile.buffer.shape)
        raise cannot_lower(copy.where, f"a tile of shape {shape}", "a static shape")
    return static


def _all_within(kernel: ir.For, tile: ir.Var, axis: int, extent: int) -> bool:
    """Prove that no access of a tile goes beyond an extent of one of its dimensions."""
    analyzer = sym.Analyzer()
    for var, loop in {loop.loop_var: loop for loop in ir.find_all(kernel, ir.For)}.items():
        analyzer.bind(var, ir.range_of(loop))
    blocks = ir.find_all(kernel, ir.SBlockRealize, lambda x: not ir.is_const(x.predicate, 1))
    for access in ir.accesses(kernel, tile):
        if isinstance(access, ir.Call):
            return False  # an address: accesses through it are unknown
        with contextlib.ExitStack() as known:
            for block in blocks:
                if ir.uses_node(block, access):
                    known.enter_context(analyzer.constraint_scope(block.predicate))
            if not analyzer.can_prove(access.indices[axis] < extent):
                return False
    return True


# -- the solver


def _solve(
    kernel: ir.For,
    copies: list[Transfer],
    shares: list[Share],
    demands: list[Demand],
    axes: tuple[int, ...],
    rows: int,
    columns: int,
) -> SharedLayout:
    copy = copies[0]
    tile = copy.tile.buffer
    dtype = ir.dtype_of(tile)
    products = _readers(kernel, tile)
    at_once = gcd(columns, *_widths(products, tile, axes[-1]))
    if products and at_once * dtype_bytes(dtype) % CHUNK_BYTES:
        raise cannot_lower(
            copy.where,
            f"rows of {at_once * dtype_bytes(dtype)} B",
            "rows of a multiple of 16 B",
            "choose another tile",
        )
    for one in copies:
        asked = asked_swizzle(one)
        if asked is not None and columns % (span := span_elements(asked, dtype)):
            raise cannot_lower(
                one.where,
                f"rows of {columns} elements with a {asked} B swizzle",
                f"rows of a multiple of {span} elements",
                f"choose a tile of {-(-columns // span) * span} or another swizzle",
            )
    candidates = [
        SharedLayout(
            dtype, _padded_rows(rows, columns, span, swizzle, dtype), columns, span, swizzle
        )
        for span, swizzle in _shapes(dtype, columns, at_once if products else None)
    ]
    if fragment_stores(kernel, tile) or reads_rows(kernel, tile):
        # A warp has eight rows of 16 bytes at once: under the widest swizzle in all banks.
        candidates.sort(key=lambda layout: -layout.swizzle)
    demands = [*demands, *map(_panels, products)]
    demands += [_parts(*x, axes) for x in zip(copies, shares, strict=True) if not x[1].is_whole]
    row_starts = [x.place for x in find_row_pointers(kernel) if x.is_indexed]
    if takes_address(kernel, tile, row_starts):
        demands.append(Demand("an address of its elements", lambda x: x.is_as_declared))
    fits = [x for x in candidates if all(demand.accepts(x) for demand in demands)]
    if not fits:
        raise _contradiction(copy, candidates, demands)
    return fits[0]


def _shapes(dtype: str, columns: int, at_once: int | None) -> list[tuple[int, int]]:
    """List span and swizzle of the layouts to try, the best one first.

    `at_once` columns are read by a multiplication, at whose multiples a panel has to start unless
    the schedule requests a swizzle; None if there is none.
    """
    swizzled = [(span_elements(swizzle, dtype), swizzle) for swizzle in WIDEST_FIRST]
    swizzled = [(span, swizzle) for span, swizzle in swizzled if columns % span == 0]
    fewest = -(-columns // MAX_BOX)
    plain = [(columns // n, 0) for n in range(fewest, columns + 1) if columns % n == 0]
    if at_once is not None:
        return [*sorted(swizzled, key=lambda x: at_once % x[0] != 0), *plain]
    chunk = CHUNK_BYTES // dtype_bytes(dtype)
    padded = [(-(-columns // chunk) * chunk, 0)] if columns % chunk else []
    return [*padded, *plain, *swizzled]


def _padded_rows(rows: int, columns: int, span: int, swizzle: int, dtype: str) -> int:
    """Return the rows with which slots of a single panel begin where boxes, and patterns, may."""
    apart = alignment(swizzle)
    step = apart // gcd(apart, span * dtype_bytes(dtype))
    return -(-rows // step) * step if span >= columns else rows


def _parts(copy: Transfer, share: Share, axes: tuple[int, ...]) -> Demand:
    """Return what a part of a tile needs: whole panels, from where the pattern begins again."""
    *outer, columns = (share.extents[axis] or 0 for axis in axes)
    own_rows = outer and all(share.parts[axis] == 1 for axis in axes[1:-1])

    def accepts(layout: SharedLayout) -> bool:
        step = prod(outer) * layout.span * dtype_bytes(layout.dtype)
        in_rows = any(share.parts[axis] > 1 for axis in axes[:-1])
        return columns % layout.span == 0 and (
            not in_rows or (bool(own_rows) and step % layout.alignment == 0)
        )

    return Demand(f"a part of {'x'.join(map(str, (*outer, columns)))} a warp group", accepts)


def _panels(block: ir.SBlock) -> Demand:
    return Demand(
        f"block {block.name_hint}, panels for WGMMA",
        lambda layout: layout.span == span_elements(layout.swizzle, layout.dtype),
    )


def _contradiction(
    copy: Transfer, candidates: list[SharedLayout], demands: list[Demand]
) -> Exception:
    """Name the demands that no layout serves together; one alone can only be that for boxes."""
    some = next(
        some
        for size in (1, 2, len(demands))
        for some in combinations(demands, size)
        if not any(all(demand.accepts(x) for demand in some) for x in candidates)
    )
    if len(some) > 1:
        return cannot_lower(
            f"tile {copy.tile.buffer.name}",
            " and ".join(demand.who for demand in some),
            "one layout for all of them",
            "request another swizzle, or read through a separate tile",
        )
    shape = candidates[0]
    return cannot_lower(
        copy.where,
        f"{shape.rows} rows of {shape.columns} elements of {shape.dtype}",
        f"equal boxes of at most {MAX_BOX} elements a row, each at a multiple of {BOX_ALIGNMENT} B,"
        " in a tile of whole atoms of its swizzle",
        "choose another tile, or a narrower swizzle",
    )


def _readers(kernel: ir.For, tile: ir.Var) -> list[ir.SBlock]:
    """Return the multiplications that read a tile."""
    return [block for block in ir.find_blocks(kernel, WGMMA) if ir.uses(block, tile)]


def _widths(products: list[ir.SBlock], tile: ir.Var, axis: int) -> list[int]:
    """Return how many columns multiplications read at once: fewer where warp groups share them."""
    regions = [x for block in products for x in block.reads if x.source.same_as(tile)]
    widths = [ir.static_int(region.region[axis].extent) for region in regions]
    return [width for width in widths if width]


def takes_address(kernel: ir.For, tile: ir.Var, but: Sequence[Any] = ()) -> bool:
    """Tell whether something is handed a pointer into a tile, but those at these places."""

    def hands_over(call: ir.Call) -> bool:
        if call.op.name == "tirx.address_of":
            load = call.args[0]
            to_tile = isinstance(load, ir.TensorLoad) and load.source.same_as(tile)
            return to_tile and not any(load.same_as(x) for x in but)
        pointer = ir.pointer_of(call)
        return pointer is not None and pointer.same_as(tile)

    return ir.has_any(kernel, ir.Call, hands_over)
