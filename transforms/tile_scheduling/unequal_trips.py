"""Count iterations over tiles that take different numbers of them. Part of ScheduleTiles.

    for k in serial(tile_y + 1): trip = k; ...
  ->
    trips[0] = 0                                     a register, in each role
    for tile in range(tiles):
        for k in serial(tile_y + 1): trip = trips[0] + k; ...
        trips[0] = trips[0] + (tile_y + 1)

Where each tile takes the same number the count is a product, see `count_on`.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.transforms.common.channel import find_trips
from tvm_hopper.transforms.common.load_sites import written_out

from .schedule_tiles_plan import TileSchedule


def count_unequal(work: ir.Stmt, order: TileSchedule) -> tuple[ir.Stmt, list[ir.Var], set[ir.Var]]:
    """Count iterations on in registers where their number depends on the tile.

    - `work`: what a role does for one tile.
    - `order`: whose axes name the tile.
    """
    axes = [order.rows.loop_var, order.columns.loop_var]
    trips = find_trips(work)
    counters: dict[tuple[ir.For, ...], ir.Var] = {}
    planned = {}
    for bind in ir.find_all(work, tirx.Bind, lambda x: x.var in trips):
        loops = tuple(x for x in ir.find_all(work, ir.For) if ir.uses_node(x, bind))
        if not any(ir.depends_on(written_out(work, x.extent), axes) for x in loops):
            continue
        if loops not in counters:
            counters[loops] = ir.new_buffer("trips", (1,), "int32", "local")
        before = tirx.BufferLoad(counters[loops], [0])
        planned[bind] = tirx.Bind(bind.var, before + ir.as_int32(bind.value))
    work = ir.replace_nodes(work, tirx.Bind, planned)
    end = []
    for loops, counter in counters.items():
        count: Any = 1
        for loop in loops:
            count = ir.as_int32(loop.extent) * count
        end.append(tirx.BufferStore(counter, tirx.BufferLoad(counter, [0]) + count, [0]))
    return ir.seq(work, end), [*counters.values()], {bind.var for bind in planned}


def with_counters(loop: ir.For, registers: list[ir.Var]) -> ir.Stmt:
    """Set the registers of a loop over tiles to zero, in front of it."""
    if not registers:
        return loop
    zero = [tirx.BufferStore(x, tirx.IntImm("int32", 0), [0]) for x in registers]
    return ir.opaque_block("counted", ir.seq(zero, loop), alloc_buffers=registers)
