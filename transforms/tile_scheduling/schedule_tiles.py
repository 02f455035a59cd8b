"""Choose which output tiles a thread block computes, and in which order.

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

so that blocks which run together share operands in L2 (the hardware starts blocks with blockIdx.x
running fastest). With {"tvm_hopper.persistent": 16} as well, 16 blocks share the 40 tiles:

    for bx in thread_binding(16, "blockIdx.x"):
        with sblock("kernel"):
            ... in each role ...
                for tile in range((40 - bx + 15) // 16):
                    linear = bx + tile * 16
                    ... (as above)

The number of rows may be symbolic.  With {"tvm_hopper.persistent": -1} the host counts the blocks
at each launch, by the device that the tensors are on (SizePersistentGrid), and tells the kernel:

    num_blocks = call_packed("tvm_hopper.count_blocks", 40, 1)
    for bx in thread_binding(num_blocks, "blockIdx.x"):
        ...

With {"tvm_hopper.row_table": "tiles"} the device knows how many rows of tiles there are:

    rows_in_use = tiles[3, 0]
    for tile in range((rows_in_use * 8 - bx + num_blocks - 1) // num_blocks):
        ...

Trips through a channel's slots are counted on from tile to tile. With {"tvm_hopper.raster_curve":
"hilbert"} a Hilbert curve runs through squares of each group (rasterization.py).

Before: the kernel is one block inside its thread axes, and the work on one output tile is a block
in it (`tile_work`), one in each role. After: no `raster_group`, `raster_curve`, `persistent` or
`tile_work` is left.
Not here: what blocks of a cluster load for one another (multicast_loads.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.hold import hold_value
from tvm_hopper.requests.keys import BY_DEVICE, RASTER_GROUP, SHARE_LOADS, TILE_WORK, TURNS
from tvm_hopper.requests.options import read
from tvm_hopper.transforms.common.channel import find_trips
from tvm_hopper.transforms.common.explain_notes import (
    Note,
    RemarkNote,
    TilesNote,
    note_kernels,
    renumber_notes,
)
from tvm_hopper.transforms.common.multicast_groups import find_cluster_axis
from tvm_hopper.transforms.kernel_pass import function_pass
from tvm_hopper.transforms.pipeline.plan_ring_buffers import ROLLED

from .pairs_of_rows import place_of_pair, tiles_of_pairs
from .ping_pong_tiles import find_turns, take_turns
from .rasterization import place_tile
from .schedule_tiles_plan import ORDER_KEYS, TileSchedule, kernel_blocks, plan_raster
from .size_persistent_grid import ask_count
from .stream_k import new_sums, stream_loop, with_zeros
from .unequal_trips import count_unequal, with_counters


def rewrite_raster(kernel: ir.For, order: TileSchedule) -> ir.Stmt:
    """Bind the tile's indices, at the top of the kernel or of each role's loop over tiles."""
    sums = None if order.stream is None else new_sums(kernel, order.stream)
    body = order.kernel.body
    takes_turns = bool(find_turns(body))
    if order.blocks:
        body = ir.replace_nodes(
            body, ir.IfThenElse, {x: _turns(x, order) for x in find_turns(body)}
        )
        body = _replace_work(body, lambda work: _tile_loop(work, order, sums))
    elif order.group > 1:
        linear = ir.as_int32(order.rows.loop_var) * ir.as_int32(order.columns.extent)
        body = with_tile_index(body, order, linear + ir.as_int32(order.columns.loop_var))
    regions = {}
    if order.blocks:  # a block takes many tiles, and blockIdx.y is gone: regions cannot name a tile
        regions = {
            kind: [ir.full_region(region.source) for region in getattr(order.kernel, kind)]
            for kind in ("reads", "writes")
        }
        if sums is not None:
            regions = {kind: [*own, ir.full_region(sums)] for kind, own in regions.items()}
    kernel = ir.replace_nodes(
        kernel, ir.SBlock, {order.kernel: ir.with_block(order.kernel, body=body, **regions)}
    )

    def visit(axis: ir.For, mutator: Any) -> ir.Stmt:
        axis = mutator.default_mutate(axis)
        if order.blocks and axis.loop_var.same_as(order.rows.loop_var):
            return axis.body
        if not axis.loop_var.same_as(order.columns.loop_var):
            return axis
        served = (*ORDER_KEYS, TURNS) if takes_turns else ORDER_KEYS
        rest = {k: v for k, v in axis.annotations.items() if k not in served}
        extent = ir.cast_like(order.grid, axis.loop_var) if order.blocks else axis.extent
        return ir.with_body(axis, axis.body, annotations=rest, extent=extent)

    kernel = ir.mutate(kernel, [(ir.For, visit)])
    if order.stream is None or sums is None:
        return kernel
    return with_zeros(kernel, order.stream, sums)


def count_blocks(kernel: ir.For, order: TileSchedule) -> list[ir.Stmt]:
    """Count the thread blocks of a launch on the host, where that is requested."""
    if order.num_blocks is None:
        return []
    slices = ir.thread_axes(kernel).get("blockIdx.z")  # each has the same tiles once more
    number = 1 if slices is None else ir.as_int32(slices.extent)
    in_cluster = SHARE_LOADS in order.columns.annotations
    count = ask_count(order.num_shares, number, in_cluster, order.table is not None)
    return [tirx.Bind(order.num_blocks, count)]


def _replace_work(body: ir.Stmt, new: Callable[[ir.Stmt], ir.Stmt]) -> ir.Stmt:
    """Replace the blocks of what is done for one output tile."""
    blocks = ir.find_all(body, ir.SBlockRealize, lambda x: TILE_WORK in x.block.annotations)
    return ir.replace_nodes(body, ir.SBlockRealize, {x: new(x.block.body) for x in blocks})


def _tile_loop(work: ir.Stmt, order: TileSchedule, sums: ir.Var | None) -> ir.Stmt:
    """Do a role's work for all output tiles of a thread block, or for its share of their steps."""
    if (stream := order.stream) is not None:
        block = order.columns.loop_var
        thread = ir.as_int32(stream.split.condition.a) - stream.first_consumer

        def place(part: ir.Stmt, linear: Any) -> ir.Stmt:
            return with_tile_index(part, order, linear)

        return stream_loop(work, stream, block, thread, sums, place)
    tile = ir.Var("tile", "int32")
    count, order = _count_rows(order)
    work, registers, counted = count_unequal(work, order)
    body = with_tile_index(count_on(work, tile, counted), order, _place(order, tile))
    loop = ir.For(tile, 0, _tiles_of_block(order), ir.ForKind.SERIAL, body, annotations=ROLLED)
    return ir.seq(count, with_counters(loop, registers))


def _count_rows(order: TileSchedule) -> tuple[list[ir.Stmt], TileSchedule]:
    """Read how many rows of tiles there are, where a table says that."""
    if order.table is None:
        return [], order
    rows = ir.Var("rows_in_use", "int32")
    used = tirx.BufferLoad(order.table, [order.table.shape[0] - 1, 0])
    # a tile of the table is several rows where the output has further dimensions
    each = tirx.floordiv(ir.as_int32(order.rows.extent), ir.as_int32(order.table.shape[1]))
    count = tirx.Bind(rows, ir.simplify(used * each))
    return [count, hold_value(rows)], replace(order, rows_in_use=rows)


def _turns(branch: ir.IfThenElse, order: TileSchedule) -> ir.Stmt:
    """Let each set of consumers do the work for its output tiles."""
    count, order = _count_rows(order)

    def place(work: ir.Stmt, tile: ir.Var) -> ir.Stmt:
        return with_tile_index(work, order, _place(order, tile))

    return ir.seq(count, take_turns(branch, _tiles_of_block(order), count_on, place))


def _place(order: TileSchedule, tile: ir.Var) -> Any:
    """Return where in the order of all tiles one of a thread block is."""
    if order.in_pairs:
        return place_of_pair(order, tile)
    return ir.as_int32(order.columns.loop_var) + tile * order.grid


def _tiles_of_block(order: TileSchedule) -> Any:
    if order.in_pairs:
        return tiles_of_pairs(order)
    # Not negative: a block's index is below the number of blocks.
    first = ir.as_int32(order.columns.loop_var)
    tiles = ir.simplify(order.num_rows * ir.as_int32(order.columns.extent))
    return ir.simplify(tirx.truncdiv(tiles - first + order.grid - 1, order.grid))


def count_on(work: ir.Stmt, tile: ir.Var, counted: Collection[ir.Var] = ()) -> ir.Stmt:
    """Count iterations over all output tiles: each makes as many as the loops around them.

    `counted`: variables that `count_unequal` has counted; they stay as they are.
    """
    trips = find_trips(work)
    planned = {}
    for bind in ir.find_all(work, tirx.Bind, lambda x: x.var in trips and x.var not in counted):
        loops = [loop for loop in ir.find_all(work, ir.For) if ir.uses_node(loop, bind)]
        each: Any = tile
        for loop in loops:
            each = ir.as_int32(loop.extent) * each
        planned[bind] = tirx.Bind(bind.var, each + ir.as_int32(bind.value))
    return ir.replace_nodes(work, tirx.Bind, planned)


def with_tile_index(body: ir.Stmt, order: TileSchedule, linear_index: Any) -> ir.Stmt:
    """Compute a tile's row and column from its place in the order, before what uses them."""
    binds, tile = place_tile(order, linear_index)
    if order.divides_at_run_time:
        binds = [*binds, *map(hold_value, tile.values())]
    return ir.seq(binds, _read_table(ir.substitute(body, tile), order, tile))


def _read_table(body: ir.Stmt, order: TileSchedule, tile: dict[Any, Any]) -> ir.Stmt:
    """Read what a table says of a tile once, before what uses it: each iteration waits for it."""
    row = tile[order.rows.loop_var]
    names: dict[str, ir.Var] = {}
    binds: list[ir.Stmt] = []

    def read(load: ir.TensorLoad, mutator: Any) -> Any:
        load = mutator.default_mutate(load)
        *others, last = load.indices
        known = row.same_as(last) and None not in map(ir.static_int, others)
        if not load.source.same_as(order.table) or not known:
            return load
        if (key := str(load.indices)) not in names:
            names[key] = ir.Var(f"{load.source.name}_{len(names)}", ir.dtype_of(load))
            binds.append(tirx.Bind(names[key], load))
        return names[key]

    if order.table is not None:
        body = ir.mutate(body, [(ir.TensorLoad, read)])
    return ir.seq(binds, body)


def _schedule_tiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Order the output tiles of one function's kernels."""
    notes: dict[int, list[Note]] = {}
    streamed: list[int] = []  # with another kernel before what is noted
    default: Any = read(RASTER_GROUP, func, default=1)
    names = ir.Names(var.name for var in ir.find_all(func, ir.Var))

    def order(kernel: ir.For) -> ir.Stmt:
        number = ir.number_of(func, kernel)
        plans = plan_raster(kernel, default, names)
        host = [part for plan in plans for part in count_blocks(kernel, plan)]
        has_roles = bool(kernel_blocks(kernel))
        after: ir.Stmt = kernel
        for plan in plans:
            after = rewrite_raster(kernel, plan)
            streamed.extend([number] * (plan.stream is not None))
        if has_roles:
            notes[number + len(streamed)] = [_facts(kernel, plans), *_shares(plans)]
            after = _replace_work(after, lambda work: work)
        left = ir.find_all(after, ir.For, lambda x: any(k in x.annotations for k in ORDER_KEYS))
        assert not left, "ScheduleTiles left an annotation after"
        return ir.seq(host, after)

    changed = renumber_notes(ir.map_kernels(func, order), streamed, streamed)
    return note_kernels(changed, notes)


ScheduleTiles = function_pass("ScheduleTiles", _schedule_tiles)


def _shares(plans: tuple[TileSchedule, ...]) -> list[RemarkNote]:
    """Return what `explain` says of equal shares."""
    if not plans or (plan := plans[0].stream) is None:
        return []
    share, more = divmod(plan.line, plan.blocks)
    steps = f"{share} or {share + 1}" if more else f"{share}"
    alone = f"{plan.whole} whole tile{'s' * (plan.whole > 1)} and " if plan.whole else ""
    return [
        RemarkNote(
            f"loop {plans[0].columns.loop_var.name}: each of {plan.blocks} thread blocks computes "
            f"{alone}{steps} steps of {plan.streamed} tiles of {plan.steps} steps each; parts of a "
            "tile are added in their order, from block to block"
        )
    ]


def _facts(kernel: ir.For, plans: tuple[TileSchedule, ...]) -> TilesNote:
    """Return what `explain` says of an order."""
    if not plans:
        return TilesNote(raster_group=1, persistent=None)
    (plan,) = plans
    cluster = find_cluster_axis(ir.thread_axes(kernel).values())
    size = 1 if cluster is None else int(cluster.extent)
    if plan.blocks != BY_DEVICE:
        return TilesNote(plan.rows_together, plan.blocks, cluster=size, curve=plan.follows_curve)
    sizes = f"({plan.rows.extent}) x {plan.columns.extent}"
    tiles = ir.static_int(plan.num_tiles)
    text = re.sub(r"T\.int\d+\((\d+)\)", r"\1", sizes) if tiles is None else str(tiles)
    text = text if plan.table is None else f"at most {text}"
    return TilesNote(plan.rows_together, plan.blocks, text, size, plan.follows_curve)
