"""Give loads the slots of a ring, and count the trips through it.

    for t in thread_binding(256, "threadIdx.x"):
        for k in serial(8, annotations={"software_pipeline_stage": [0, 3], ...}):
            tile = alloc(shared)
            with sblock(async_op="tma_load"): tma_load(&tile, A_map, ...)
            with sblock(async_op="wgmma"): wgmma(acc, tile)
        C[...] = acc
  ->
    for t in thread_binding(256, "threadIdx.x"):
        with sblock("kernel"):
            ring = alloc(4 tiles)
            with sblock("tile", tile_work=1):
                for k in serial(8, annotations={"channel": 0, "num_slots": 4, ...}):
                    trip = k
                    with sblock(async_op="tma_load", channel=0):
                        fill_slot(0, trip)
                        tma_load(&ring[trip % 4], A_map, ...)
                    with sblock(async_op="wgmma"): wgmma(acc, ring[trip % 4])
                C[...] = acc

Loads that one iteration issues share a channel. Every load gets one: where nothing is pipelined,
and outside of loops, it has one slot. Iterations run in the order of the program still; that the
slots are there lets later passes move the loads ahead, or to a producer of their own.

Before: each tile is written by one `tma_load` block.  After: no load without a channel, and no
annotation is left for TVM's own pipelining to act on.
Not here: who loads (specialize_warps.py), how far ahead (expand_pipeline.py), the barriers
(lower_channels.py).
"""

from __future__ import annotations

from typing import Any

from tvm import ir as tvm_ir
from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.keys import CHANNEL, NUM_SLOTS, PIPELINE_KEYS, TILE_WORK
from tvm_hopper.plan.channel import TRIP, count_trips, fill
from tvm_hopper.plan.notes import RingNote, note_kernels
from tvm_hopper.plan.pipeline_plan import KernelPlan, PipelinePlan, plan_pipelines

# Unrolled by the CUDA compiler, iterations grow code and make ptxas serialise WGMMA (C7519).
ROLLED = {"disable_unroll": True}


def rewrite_pipelines(plan: KernelPlan) -> ir.For:
    """Build the kernel's work anew, around rings."""
    names = ir.Names()
    rings = {
        tile: _new_ring(tile, pipeline.num_slots, names)
        for pipeline in plan.pipelines
        for tile in pipeline.tiles
    }
    body = plan.axis.body
    for pipeline in reversed(plan.pipelines):  # the outermost last: it holds the others
        body = _rewrite_site(body, pipeline, rings, plan.is_persistent)
    body = _drop_allocations(body, list(rings))
    outer: dict[str, Any] = {"alloc_buffers": []}
    if isinstance(body, ir.SBlockRealize) and not body.block.annotations:
        outer = {key: getattr(body.block, key) for key in ("reads", "writes", "alloc_buffers")}
        body = body.block.body
    outer["alloc_buffers"] = [*outer["alloc_buffers"], *rings.values()]
    work = ir.opaque_block("tile", body, annotations={TILE_WORK: 1})
    return ir.with_body(plan.axis, ir.opaque_block(ir.KERNEL_BLOCK, work, **outer))


def _new_ring(tile: ir.Var, num_slots: int, names: ir.Names) -> ir.Var:
    return ir.new_buffer(
        names.take(tile.name),
        (num_slots, *(int(x) for x in tile.shape)),
        ir.dtype_of(tile),
        tile.scope(),
        int(tile.ty.data_alignment),
    )


def _rewrite_site(
    body: ir.Stmt, plan: PipelinePlan, rings: dict[ir.Var, ir.Var], is_persistent: bool
) -> ir.Stmt:
    """Bind the trip where the loads stand, and move every access of their tiles to its slot."""
    count = count_trips(plan.loops)
    if is_persistent:
        count = ir.as_int32(count)
    trip = ir.Var(TRIP, ir.dtype_of(count))
    slot = ir.as_int32(trip % plan.num_slots)
    load = _join_loads(plan, trip)
    parts = [tirx.Bind(trip, count), load, *plan.others]
    if plan.loop is None:
        first = plan.loads[0]
        planned: dict[Any, Any] = {x: ir.seq() for x in plan.loads}
        planned[first] = ir.seq(tirx.Bind(trip, count), load)
        body = ir.drop_empty(ir.replace_nodes(body, ir.SBlockRealize, planned))
    else:
        notes = {k: v for k, v in plan.loop.annotations.items() if k not in PIPELINE_KEYS}
        notes = {**notes, **ROLLED, CHANNEL: plan.number, NUM_SLOTS: plan.num_slots}
        inner = _in_block(plan, ir.seq(parts))
        new = ir.with_body(plan.loop, inner, annotations=notes)
        body = ir.replace_nodes(body, ir.For, {plan.loop: new})
    for tile in plan.tiles:
        body = _move_to_slot(body, tile, rings[tile], slot)
    return body


def _in_block(plan: PipelinePlan, body: ir.Stmt) -> ir.Stmt:
    """Keep the block of an iteration if it allocates anything but what the loads write."""
    old = plan.loop.body if plan.loop is not None else None
    if not isinstance(old, ir.SBlockRealize):
        return body
    kept = [x for x in old.block.alloc_buffers if not any(x.same_as(t) for t in plan.tiles)]
    return ir.opaque_block(old.block.name_hint, body, alloc_buffers=kept) if kept else body


def _join_loads(plan: PipelinePlan, trip: ir.Var) -> ir.Stmt:
    """Make one block of the loads that a trip issues, which complete together."""
    blocks = [load.block for load in plan.loads]
    first = blocks[0]
    return ir.opaque_block(
        first.name_hint,
        ir.seq(fill(plan.number, trip), [block.body for block in blocks]),
        reads=[region for block in blocks for region in block.reads],
        writes=[region for block in blocks for region in block.writes],
        annotations={**first.annotations, CHANNEL: plan.number},
    )


def _move_to_slot(stmt: Any, tile: ir.Var, ring: ir.Var, slot: Any) -> Any:
    one = tvm_ir.Range.from_min_extent(slot, 1)
    return ir.reindex(
        stmt, tile, ring, lambda indices: [slot, *indices], lambda ranges: [one, *ranges]
    )


def _drop_allocations(body: ir.Stmt, tiles: list[ir.Var]) -> ir.Stmt:
    """Take the tiles, which became rings, away from the blocks that allocate them."""

    def drop(block: ir.SBlock) -> ir.SBlock:
        kept = [x for x in block.alloc_buffers if not any(x.same_as(tile) for tile in tiles)]
        if len(kept) == len(block.alloc_buffers):
            return block
        return ir.with_block(block, alloc_buffers=kept)

    return ir.replace(body, ir.SBlock, drop)


def open_channels(kernel: ir.For) -> ir.For:
    """Give a channel to every load of a kernel that has none."""
    for plan in plan_pipelines(kernel):
        kernel = ir.replace_nodes(kernel, ir.For, {plan.axis: rewrite_pipelines(plan)})
    return kernel


@prim_func_pass(opt_level=0, name="tvm_hopper.PlanPipeline")
class PlanPipeline:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Give the loads of one function their slots."""
        notes = {}

        def build(kernel: ir.For) -> ir.For:
            number = ir.number_of(func, kernel)
            plans = plan_pipelines(kernel)
            for plan in plans:
                notes[number] = _facts(plan)
                kernel = ir.replace_nodes(kernel, ir.For, {plan.axis: rewrite_pipelines(plan)})
            assert not plan_pipelines(kernel), "PlanPipeline left a load without a channel"
            return kernel

        return note_kernels(ir.map_kernels(func, build), notes)


def _facts(plan: KernelPlan) -> list[RingNote]:
    """Return what `explain` says of the rings."""
    return [RingNote(x.number, x.num_slots, x.tx_bytes) for x in plan.pipelines]
