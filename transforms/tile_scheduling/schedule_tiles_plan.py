"""Decide the order of output tiles (rasterization) and the number of thread blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests.keys import (
    BY_DEVICE,
    HILBERT,
    KERNEL,
    PAIRS,
    PERSISTENT,
    RASTER_CURVE,
    RASTER_GROUP,
    ROW_TABLE,
    STREAM,
)

from .stream_k_plan import TileStream, plan_stream

MOST_TILES = (1 << 31) - 1  # indices of tiles have 32 bits
ORDER_KEYS = (RASTER_GROUP, PERSISTENT, RASTER_CURVE, STREAM, ROW_TABLE)
MOST_ROWS_OF_CURVE = 64  # of a square of tiles: more cover all that run at the same time
LARGE_GROUP = 1024  # of more rows, times elements of a tile, the constants could pass 32 bits


@dataclass(frozen=True)
class TileSchedule:
    """Groups of `group` rows of output tiles over the two block axes; 1 is the hardware's order.

    `blocks` thread blocks share all tiles; None is one block a tile, BY_DEVICE as many as the host
    finds at launch and puts into `num_blocks`. More rows in a group than there are, and more blocks
    than tiles, mean all of them. With the curve "hilbert" a Hilbert curve runs through squares of a
    group, whose rows are then a power of two, the largest not above `group` and what there is; the
    curve "pairs" is two rows of tiles, the second of them backwards. With `stream` blocks have
    equal shares of the steps of all tiles. With `table` the first element of its last row counts
    the rows of tiles that there are, in a role's registers `rows_in_use`.
    """

    kernel: ir.SBlock
    rows: ir.For
    columns: ir.For
    group: int
    blocks: int | None
    num_blocks: ir.Var | None = None
    curve: str | None = None
    stream: TileStream | None = None
    table: ir.Var | None = None
    rows_in_use: ir.Var | None = None

    def __post_init__(self) -> None:
        where = f"loop {self.columns.loop_var.name}"
        if self.group < 1:
            raise cannot_lower(
                f"{where}, {RASTER_GROUP}", str(self.group), "at least one row of tiles"
            )
        if self.blocks is not None and self.blocks < 1 and self.blocks != BY_DEVICE:
            raise cannot_lower(
                f"{where}, {PERSISTENT}",
                str(self.blocks),
                f"at least one thread block, or {BY_DEVICE} for as many as the device balances",
            )

        others = self.group > 1 or self.stream is not None or self.table is not None
        if self.in_pairs and (self.blocks is None or others):
            raise cannot_lower(
                f"{where}, {RASTER_CURVE}",
                "pairs of tiles " + ("next to another order" if others else "of one block each"),
                f"{PERSISTENT}, without groups of rows, equal shares or a table of rows",
                "leave the pairs out",
            )
        rows, columns = (ir.static_int(x.extent) for x in (self.rows, self.columns))
        if rows is not None and columns is not None and rows * columns > MOST_TILES:
            raise cannot_lower(
                where,
                f"{rows} x {columns} output tiles in an order of their own",
                f"at most {MOST_TILES}",
                "choose a larger tile, or leave the order to the hardware",
            )

    @property
    def rows_together(self) -> int:
        """Rows of a group as requested; along a curve the power of two that it takes."""
        if self.curve != HILBERT:
            return self.group
        rows = ir.static_int(self.rows.extent) or MOST_ROWS_OF_CURVE
        return 1 << (min(self.group, rows, MOST_ROWS_OF_CURVE).bit_length() - 1)

    @property
    def follows_curve(self) -> bool:
        """Tell whether a curve runs through groups of several rows."""
        return self.curve == HILBERT and self.rows_together > 1

    @property
    def group_rows(self) -> Any:
        """Rows of a group but the last: never more than there are, so that 32 bits count them."""
        if self.curve == HILBERT:
            return self.rows_together
        rows, columns = (ir.static_int(x.extent) for x in (self.rows, self.columns))
        if rows is not None:
            return min(self.group, rows)
        most = columns or int(sym.Analyzer().const_int_bound(self.columns.extent).max_value)
        if self.group <= LARGE_GROUP and self.group * most <= MOST_TILES:
            return self.group
        return tirx.min(ir.as_int32(self.rows.extent), min(self.group, MOST_TILES))

    @property
    def divides_at_run_time(self) -> bool:
        """Tell whether a tile's place is found by a division by what the launch alone tells."""
        symbolic = any(ir.static_int(x.extent) is None for x in (self.rows, self.columns))
        return symbolic or self.rows_in_use is not None

    @property
    def num_rows(self) -> Any:
        """Rows of output tiles."""
        return ir.as_int32(self.rows.extent) if self.rows_in_use is None else self.rows_in_use

    @property
    def num_tiles(self) -> Any:
        """All output tiles; with a table as many as there may be."""
        return ir.simplify(ir.as_int32(self.rows.extent) * ir.as_int32(self.columns.extent))

    @property
    def in_pairs(self) -> bool:
        """Tell whether a block takes tiles in pairs, see pairs_of_rows.py."""
        return self.curve == PAIRS

    @property
    def num_shares(self) -> Any:
        """The number of tiles, or of pairs of tiles, that thread blocks share."""
        if not self.in_pairs:
            return self.num_tiles
        rows = ir.as_int32(self.rows.extent)
        return ir.simplify((rows + 1) // 2 * ir.as_int32(self.columns.extent))

    @property
    def grid(self) -> Any:
        """Thread blocks of a persistent kernel: never more than what they share."""
        if self.num_blocks is not None:
            return self.num_blocks
        if self.stream is not None:
            return tirx.IntImm("int32", self.stream.blocks)
        return ir.simplify(tirx.min(self.num_shares, min(self.blocks or 1, MOST_TILES)))


def plan_raster(
    kernel: ir.For, default_group: int = 1, names: ir.Names | None = None
) -> tuple[TileSchedule, ...]:
    """Decide the order of output tiles: the annotation's, else `default_group` where possible."""
    axes = ir.thread_axes(kernel)
    columns, rows = axes.get("blockIdx.x"), axes.get("blockIdx.y")
    if columns is None:
        return ()
    roles, notes = kernel_blocks(kernel), columns.annotations
    asked = [key for key in ORDER_KEYS if key in notes]
    if not asked and (default_group == 1 or rows is None or not roles):
        return ()
    if rows is None or not roles:
        raise cannot_lower(
            f"loop {columns.loop_var.name}, {asked[0]}",
            "no loop bound to blockIdx.y" if rows is None else "a kernel without a pipelined loop",
            "rows of output tiles on blockIdx.y and columns on blockIdx.x, around a pipelined loop",
        )
    in_pairs = notes.get(RASTER_CURVE) == PAIRS
    group = int(notes.get(RASTER_GROUP, 1 if in_pairs else default_group))
    blocks = int(notes[PERSISTENT]) if PERSISTENT in notes else None
    num_blocks = None
    if blocks == BY_DEVICE:
        num_blocks = ir.Var((names or ir.Names()).take("num_blocks"), "int32")
    curve = str(notes[RASTER_CURVE]) if RASTER_CURVE in notes else None
    table = _table_of(roles[0], str(notes[ROW_TABLE])) if ROW_TABLE in notes and blocks else None
    order = TileSchedule(roles[0], rows, columns, group, blocks, num_blocks, curve, table=table)
    return (replace(order, stream=plan_stream(kernel, columns, order.num_tiles, blocks)),)


def _table_of(kernel: ir.SBlock, name: str) -> ir.Var:
    """Return a table of rows by its name."""
    loads = ir.find_all(kernel, ir.TensorLoad, lambda x: str(x.source.name) == name)
    tables = [x.source for x in loads if ir.dtype_of(x) == "int32" and len(x.indices) == 2]
    if not tables:
        need = "a tensor of int32 with two dimensions, which the kernel reads"
        raise cannot_lower(f"block {kernel.name_hint}, {ROW_TABLE}", repr(name), need)
    return tables[0]


def kernel_blocks(kernel: ir.For) -> list[ir.SBlock]:
    """Return the block that holds all that a kernel of ours does, if it is one."""
    return ir.find_blocks(kernel, KERNEL)
