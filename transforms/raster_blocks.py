"""Visit output tiles in groups of rows, so that blocks running together share operands in L2.

    for by in thread_binding(5, "blockIdx.y"):
        for bx in thread_binding(8, "blockIdx.x", annotations={"tvm_hopper.raster_group": 2}):
            with sblock("kernel"):
                ... by, bx ...
  ->
            with sblock("kernel"):                         (same loops, no annotation)
                linear = by * 8 + bx
                first = linear // 16 * 2                   a group is 2 rows of 8 tiles,
                rows = min(5 - first, 2)                   the last one may have fewer;
                inside = linear % 16                       inside, walk along m first
                tile_y = first + inside % rows
                tile_x = inside // rows
                ... tile_y, tile_x ...

The hardware starts blocks with blockIdx.x running fastest. The number of rows may be symbolic.

Before: the kernel is one block inside its thread axes.  After: no `raster_group` is left.
Not here: clusters and persistent schedules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.keys import RASTER_GROUP
from tvm_hopper.options import read


@dataclass(frozen=True)
class RasterOrder:
    """Groups of `group` rows of output tiles over the two block axes; 1 is the hardware's order."""

    kernel: ir.SBlock
    rows: ir.For
    columns: ir.For
    group: int

    def __post_init__(self) -> None:
        if self.group < 1:
            where = f"loop {self.columns.loop_var.name}, {RASTER_GROUP}"
            raise cannot_lower(where, str(self.group), "at least one row of tiles")


def plan_raster(kernel: ir.For, default_group: int = 1) -> tuple[RasterOrder, ...]:
    """Decide the order of output tiles: the annotation's, else `default_group` where possible."""
    axes = ir.thread_axes(kernel)
    columns, rows = axes.get("blockIdx.x"), axes.get("blockIdx.y")
    blocks = _role_blocks(kernel)
    asked = columns is not None and RASTER_GROUP in columns.annotations
    if not asked and (default_group == 1 or rows is None or columns is None or not blocks):
        return ()
    if rows is None or not blocks:
        raise cannot_lower(
            f"loop {columns.loop_var.name}, {RASTER_GROUP}",
            "no loop bound to blockIdx.y" if rows is None else "a kernel without a pipelined loop",
            "rows of output tiles on blockIdx.y and columns on blockIdx.x, around a pipelined loop",
        )
    group = int(columns.annotations[RASTER_GROUP]) if asked else default_group
    return (RasterOrder(blocks[0], rows, columns, group),)


def _role_blocks(kernel: ir.For) -> list[ir.SBlock]:
    return ir.find_all(kernel, ir.SBlock, lambda block: block.name_hint == ir.KERNEL_BLOCK)


def rewrite_raster(kernel: ir.For, order: RasterOrder) -> ir.For:
    """Bind the tile's indices at the top of the kernel and drop the annotation."""

    def enter(node: ir.For) -> ir.For:
        if RASTER_GROUP not in node.annotations:
            return node
        rest = {k: v for k, v in node.annotations.items() if k != RASTER_GROUP}
        return ir.with_body(node, node.body, annotations=rest)

    body = order.kernel.body
    if order.group > 1:
        binds, tile = emit_tile_index(order)
        body = ir.seq(binds, ir.substitute(body, tile))
    changed = ir.with_block(order.kernel, body=body)
    return ir.replace(ir.replace_nodes(kernel, ir.SBlock, {order.kernel: changed}), ir.For, enter)


def emit_tile_index(order: RasterOrder) -> tuple[list[Any], dict[Any, Any]]:
    """Return the statements that compute the tile's row and column, and what they stand for."""
    num_rows, num_columns = _int32(order.rows.extent), _int32(order.columns.extent)
    in_group = num_columns * order.group
    binds: list[Any] = []

    def bind(name: str, value: Any) -> ir.Var:
        var = ir.Var(name, "int32")
        binds.append(tirx.Bind(var, ir.simplify(value)))
        return var

    linear = bind(
        "linear", _int32(order.rows.loop_var) * num_columns + _int32(order.columns.loop_var)
    )
    first = bind("first", linear // in_group * order.group)
    rows: Any = order.group
    if not ir.is_const(ir.simplify(num_rows % order.group), 0):
        rows = bind("rows", tirx.min(num_rows - first, order.group))
    inside = bind("inside", linear % in_group)
    # Neither is negative, which a floor division by a run-time number of rows would have to check.
    tile_y = bind("tile_y", first + tirx.truncmod(inside, tirx.convert(rows)))
    tile_x = bind("tile_x", tirx.truncdiv(inside, tirx.convert(rows)))
    return binds, {order.rows.loop_var: tile_y, order.columns.loop_var: tile_x}


def _int32(value: Any) -> Any:
    return value if ir.dtype_of(value) == "int32" else tirx.Cast("int32", value)


@prim_func_pass(opt_level=0, name="tvm_hopper.RasterBlocks")
class RasterBlocks:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Order the output tiles of one function's kernels."""
        notes = []
        default = read(RASTER_GROUP, func, default=1)

        def order(kernel: ir.For) -> ir.For:
            plans = plan_raster(kernel, default)
            for plan in plans:
                kernel = rewrite_raster(kernel, plan)
            if _role_blocks(kernel):
                notes.append({"raster_group": plans[0].group if plans else 1})
            assert not plan_raster(kernel), "RasterBlocks left an annotation behind"
            return kernel

        func = ir.map_kernels(func, order)
        return ir.note_plan(func, notes)
