"""Lay shared tiles out as panels of one swizzle span, the form that TMA writes and WGMMA reads.

    A_shared = alloc((128, 128), "float16", "shared.dyn")
    for r, c in grid(128, 128):                      annotations={"tvm_hopper.async_copy": "tma"}
        A_shared[r, c] = A[m + r, k + c]
  ->
    A_shared = alloc((2, 128, 64), "float16", "shared.dyn", align=1024)
    for p, r, s in grid(2, 128, 64):                       + {"tvm_hopper.swizzle": 128}
        A_shared[p, r, s] = A[m + r, k + p * 64 + s]

A row of a panel is as long as the swizzle pattern is wide, so one panel is one TMA box. The swizzle
asked for stands on the copy; without one the widest that divides the tile's rows is taken.

Before: every tile is filled by one copy nest.  After: every tile that an `async_copy` fills is
[panels, rows, span] and its copy names the swizzle.
Not here: the XOR pattern itself, which the TMA unit and WGMMA apply to the panels.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import gcd
from typing import Any

from tvm import ir as tvm_ir
from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.analysis.copies import CopyNest, find_copies
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.swizzle import alignment, span_elements
from tvm_hopper.keys import SWIZZLE, WGMMA

SWIZZLES = (128, 64, 32, 0)  # widest first: fewer, longer boxes


@dataclass(frozen=True)
class PanelLayout:
    """One shared tile of `rows` x `columns` elements, to be stored as panels of `span` columns."""

    copy: CopyNest
    rows: int
    columns: int
    swizzle: int

    def __post_init__(self) -> None:
        if self.columns % self.span:
            raise cannot_lower(
                self.copy.where,
                f"rows of {self.columns} elements with a {self.swizzle} B swizzle",
                f"rows of a multiple of {self.span} elements",
                f"choose a tile of {-(-self.columns // self.span) * self.span} or another swizzle",
            )

    @property
    def span(self) -> int:
        """Elements in a row of a panel."""
        return span_elements(self.swizzle, ir.dtype_of(self.copy.tile))

    @property
    def shape(self) -> tuple[int, int, int]:
        """The tile as panels."""
        return self.columns // self.span, self.rows, self.span


def plan_panels(kernel: ir.For) -> tuple[PanelLayout, ...]:
    """Choose the panels of every tile that has none yet."""
    copies = find_copies(kernel)
    for first, second in combinations(copies, 2):
        if first.tile.same_as(second.tile):
            raise cannot_lower(second.where, "a second copy into one tile", "one copy per tile")
    return tuple(_plan_panel(kernel, copy) for copy in copies if not _is_panelled(copy))


def _is_panelled(copy: CopyNest) -> bool:
    return (
        len(copy.tile.shape) == len(copy.loops) == 3
        and SWIZZLE in copy.block.annotations
        and all(
            loop.loop_var.same_as(index)
            for loop, index in zip(copy.loops, copy.store.indices, strict=True)
        )
    )


def _plan_panel(kernel: ir.For, copy: CopyNest) -> PanelLayout:
    static = [ir.static_int(extent) for extent in copy.tile.shape]
    extents = [extent for extent in static if extent is not None]
    if len(extents) != len(static):
        raise cannot_lower(copy.where, f"a tile of shape {list(copy.tile.shape)}", "a static shape")
    sides = [extent for extent in extents if extent != 1]
    if len(sides) != 2:
        raise cannot_lower(copy.where, f"a tile of shape {extents}", "a tile of two dimensions")
    variables = [
        index for index, extent in zip(copy.store.indices, extents, strict=True) if extent != 1
    ]
    axes = [loop.loop_var for loop in copy.loops if not ir.is_const(loop.extent, 1)]
    matches = len(variables) == len(axes) == 2 and all(
        isinstance(index, ir.Var) and index.same_as(axis)
        for index, axis in zip(variables, axes, strict=True)
    )
    covers = [ir.static_int(loop.extent) for loop in copy.loops if loop.loop_var in axes] == sides
    if not matches or not covers:
        raise cannot_lower(
            copy.where,
            f"loops {[f'{x.loop_var.name}<{x.extent}' for x in copy.loops]} that store at "
            f"{list(copy.store.indices)}",
            "one loop over the rows and one over the columns of the whole tile",
            "leave the copy's loops as compute_at made them",
        )
    rows, columns = sides
    row_bytes = _columns_at_once(kernel, copy.tile, columns) * dtype_bytes(ir.dtype_of(copy.tile))
    if SWIZZLE in copy.block.annotations:
        swizzle = int(copy.block.annotations[SWIZZLE])
    else:
        fits = [width for width in SWIZZLES if row_bytes % (width or 16) == 0]
        if not fits:
            raise cannot_lower(
                copy.where,
                f"rows of {row_bytes} B",
                "rows of a multiple of 16 B",
                "choose another tile",
            )
        swizzle = fits[0]
    return PanelLayout(copy, rows, columns, swizzle)


def _columns_at_once(kernel: ir.For, tile: ir.Var, columns: int) -> int:
    """Return how many columns a multiplication reads, at whose multiples a panel has to start.

    All, unless warp groups share the columns.
    """
    column = max(axis for axis, extent in enumerate(tile.shape) if not ir.is_const(extent, 1))
    widths = [
        ir.static_int(region.region[column].extent)
        for block in ir.find_blocks(kernel, WGMMA)
        for region in block.reads
        if region.source.same_as(tile)
    ]
    return gcd(columns, *(width for width in widths if width))


def rewrite_panels(kernel: ir.For, plan: tuple[PanelLayout, ...]) -> ir.For:
    """Replace tiles, the nests that fill them, and every other access."""
    for layout in plan:
        kernel = _rewrite_tile(kernel, layout)
    return kernel


def _rewrite_tile(body: ir.Stmt, layout: PanelLayout) -> ir.Stmt:
    old = layout.copy.tile
    new = ir.new_buffer(
        old.name, layout.shape, ir.dtype_of(old), old.scope(), alignment(layout.swizzle)
    )
    kept = [axis for axis, extent in enumerate(old.shape) if not ir.is_const(extent, 1)]

    def index(indices: list[Any]) -> list[Any]:
        row, column = (indices[axis] for axis in kept)
        span = layout.span
        return [ir.simplify(column // span), row, ir.simplify(column % span)]

    def region(ranges: list[Any]) -> list[Any]:
        row, column = (ranges[axis] for axis in kept)
        span, width = layout.span, ir.static_int(column.extent)
        if width is not None and width % span == 0:
            panels = tvm_ir.Range.from_min_extent(ir.simplify(column.min // span), width // span)
        else:
            panels = tvm_ir.Range(0, layout.shape[0])
        return [panels, row, tvm_ir.Range(0, span)]

    body = ir.replace_nodes(body, ir.Stmt, {layout.copy.nest: _panel_nest(layout, new)})
    body = ir.reindex(body, old, new, index, region)
    return ir.replace(
        body,
        ir.SBlock,
        lambda block: (
            ir.with_block(
                block, alloc_buffers=[new if b.same_as(old) else b for b in block.alloc_buffers]
            )
            if any(b.same_as(old) for b in block.alloc_buffers)
            else block
        ),
    )


def _panel_nest(layout: PanelLayout, new: ir.Var) -> ir.Stmt:
    """Build the loops over panels, rows and spans around the same load."""
    copy = layout.copy
    row, column = (x for x in copy.loops if not ir.is_const(x.extent, 1))
    units = {x.loop_var: 0 for x in copy.loops if ir.is_const(x.extent, 1)}

    def body(p: Any, r: Any, s: Any) -> ir.Stmt:
        values = {row.loop_var: r, column.loop_var: p * layout.span + s, **units}
        block = copy.block
        block = ir.with_block(
            block,
            reads=ir.substitute(block.reads, values),
            writes=[
                tirx.BufferRegion(new, [tvm_ir.Range.from_min_extent(x, 1) for x in (p, r, s)])
            ],
            body=ir.BufferStore(new, ir.substitute(copy.store.value, values), [p, r, s]),
            annotations={**block.annotations, SWIZZLE: layout.swizzle},
        )
        return ir.SBlockRealize([], True, block)

    return _loops(layout.shape, body)


def _loops(extents: tuple[int, ...], body: Any) -> ir.Stmt:
    names = ("p", "r", "s")
    variables = [ir.Var(name, "int32") for name in names]
    stmt = body(*variables)
    for var, extent in reversed(list(zip(variables, extents, strict=True))):
        stmt = ir.For(var, 0, extent, ir.ForKind.SERIAL, stmt)
    return stmt


@prim_func_pass(opt_level=0, name="tvm_hopper.LayoutShared")
class LayoutShared:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Lay out the shared tiles of one function."""

        def lay_out(kernel: ir.For) -> ir.For:
            after = rewrite_panels(kernel, plan_panels(kernel))
            assert not plan_panels(after), "LayoutShared left a tile without panels"
            return after

        return ir.map_kernels(func, lay_out)
