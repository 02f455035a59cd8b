"""Barrier pipelines: give loads and stores ring slots, and count the iterations.

    for t in thread_binding(256, "threadIdx.x"):
        for k in serial(8, annotations={"software_pipeline_stage": [0, 3], ...}):
            tile = alloc(shared)
            with sblock(async_op="tma_load"): tma_load(&tile, A_map, ...)
            with sblock(async_op="op"): op(acc, tile)
        C[...] = acc
  ->
    for t in thread_binding(256, "threadIdx.x"):
        with sblock("kernel", kernel=1):
            ring = alloc(4 tiles)
            with sblock("tile", tile_work=1):
                for k in serial(8, annotations={"num_slots": 4, ...}):
                    trip = k
                    with sblock(async_op="tma_load", channel=0):
                        fill_slot(0, trip)
                        tma_load(&ring[trip % 4], A_map, ...)
                    with sblock(async_op="op"): op(acc, ring[trip % 4])
                C[...] = acc

Loads that one iteration issues share a channel and go where the first of them is, if nothing
in between forbids it (`common/load_sites.py`). Every load gets a channel: where nothing is
pipelined, and outside of loops, it has one slot. Iterations run in the order of the program still;
that the slots are there lets later passes move the loads ahead, or to a producer of their own. So a
block of loads stands alone: it takes along the variables that it uses of those bound in the loop.

If roles are requested, or warp groups multiply, a producer makes all loads and hands them over by
mbarriers. Copies by cp.async are then a separate block in the same channel (joined_loads.py). They
complete on its mbarrier instead of in groups.

A tile that threads write and asynchronous stores read gets the requested slots
(`tma_store_groups_plan.py`), without consumers:

    for k in serial(8):                                      for k in serial(8):
        with sblock(""):                                         trip = k
            tile = alloc(shared)
            tile[...] = ...                              ->      ring[trip % 2, ...] = ...
            with sblock(async_op="tma_store",                    with sblock(async_op="tma_store",
                        store_slots=2):                                      store_ring=1):
                tma_store(&tile, ...)                                store_slot(1, trip)
                                                                     tma_store(&ring[trip % 2], ...)

Before: each tile is written by one `tma_load` block.  After: no load without a channel, and no
annotation is left for TVM's own pipelining to act on.
Not here: who loads (specialize_warps.py), how far ahead (expand_pipeline.py), the barriers
(lower_channels_to_mbarriers.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tvm import ir as tvm_ir, tirx

from tvm_hopper import ir
from tvm_hopper.facts.arch import Processor
from tvm_hopper.requests.bodies import map_bodies
from tvm_hopper.requests.keys import (
    CHANNEL,
    KERNEL,
    NUM_SLOTS,
    PIPELINE_KEYS,
    TILE_WORK,
)
from tvm_hopper.requests.targets import processor_of
from tvm_hopper.transforms.common.channel import TRIP, count_trips
from tvm_hopper.transforms.common.explain_notes import Note
from tvm_hopper.transforms.common.unroll_accumulator_parts import UNROLL
from tvm_hopper.transforms.kernel_pass import function_pass, map_noted

from .joined_loads import join_loads
from .late_stages import mark_late, staged_loops
from .pipeline_notes import pipeline_notes
from .plan_ring_buffers_plan import KernelPlan, PipelinePlan, plan_pipelines
from .tma_store_groups import leave_slot, put_first, without_requests
from .tma_store_groups_plan import StoreRing

# Unrolled by the CUDA compiler, iterations grow code and make ptxas serialise products (C7519).
# Where every thread copies, counts slots and computes addresses, and has groups of its own to wait
# for, that saves more than it costs: 16 iterations of 16 threads took 1.40 instead of 1.68 us
# (H200).
# A loop that counts parts of the accumulator is unrolled all the same: registers have no index.
ROLLED = {"disable_unroll": True}


def rewrite_pipelines(plan: KernelPlan) -> Any:
    """Build the kernel again, its work around rings."""
    names = ir.Names()
    rings = {
        tile: _new_ring(tile, pipeline.num_slots, names)
        for pipeline in plan.pipelines
        for tile in pipeline.tiles
    }
    rings.update({x.tile: _new_ring(x.tile, x.num_slots, names) for x in plan.store_rings})
    trips = [_count(pipeline, plan.is_persistent) for pipeline in plan.pipelines]
    turns = [_count(ring, plan.is_persistent) for ring in plan.store_rings]
    body = ir.drop_empty(_place_loads(plan, trips, turns, rings))
    for ring, turn in zip(plan.store_rings, turns, strict=True):
        slot = ir.as_int32(turn.var % ring.num_slots)
        body = _move_to_slot(body, ring.tile, rings[ring.tile], slot)
    for pipeline, trip in zip(plan.pipelines, trips, strict=True):
        slot = ir.as_int32(trip.var % pipeline.num_slots)
        for tile in pipeline.tiles:
            body = _move_to_slot(body, tile, rings[tile], slot)
    return plan.threads.run(_in_kernel_block(body, list(rings.values())))


def _in_kernel_block(body: ir.Stmt, rings: list[ir.Var]) -> ir.Stmt:
    """Allocate the rings in the block that holds all that the kernel does."""
    outer: dict[str, Any] = {"alloc_buffers": []}
    if isinstance(body, ir.SBlockRealize) and ir.is_const(body.predicate, 1):
        block = body.block
        if KERNEL in block.annotations:  # some loads had channels before
            buffers = [*block.alloc_buffers, *rings]
            return ir.SBlockRealize([], True, ir.with_block(block, alloc_buffers=buffers))
        if not block.annotations:
            outer = {key: getattr(block, key) for key in ("reads", "writes", "alloc_buffers")}
            body = block.body
    outer["alloc_buffers"] = [*outer["alloc_buffers"], *rings]
    work = ir.opaque_block("tile", body, annotations={TILE_WORK: 1})
    return ir.opaque_block(ir.KERNEL_BLOCK, work, annotations={KERNEL: 1}, **outer)


def _new_ring(tile: ir.Var, num_slots: int, names: ir.Names) -> ir.Var:
    return ir.new_buffer(
        names.take(tile.name),
        (num_slots, *(int(x) for x in tile.shape)),
        ir.dtype_of(tile),
        tile.scope(),
        int(tile.ty.data_alignment),
    )


def _count(plan: PipelinePlan | StoreRing, is_persistent: bool) -> tirx.Bind:
    """Bind the iteration of a ring to a separate variable."""
    count = count_trips(list(plan.loops))
    if is_persistent:
        count = ir.as_int32(count)
    return tirx.Bind(ir.Var(TRIP, ir.dtype_of(count)), count)


def _place_loads(
    plan: KernelPlan,
    trips: list[tirx.Bind],
    turns: list[tirx.Bind],
    rings: Mapping[Any, ir.Var],
) -> ir.Stmt:
    """Join loads where the first of them is, in one walk: sites may be inside of others."""
    planned, in_front = _planned(plan, trips, turns)
    num_slots = {x.loop: x.num_slots for x in plan.pipelines if x.loop is not None}
    slotted = [x for pipeline in plan.pipelines for x in pipeline.loads]
    slotted += [x for ring in plan.store_rings for x in ring.stores]

    def put(node: Any, mutator: Any) -> Any:
        new = planned.get(node)
        return mutator.default_mutate(node) if new is None else new

    def loop(node: ir.For, mutator: Any) -> ir.For:
        new = mutator.default_mutate(node)
        if node not in num_slots and node not in in_front:
            return new
        notes = {k: v for k, v in new.annotations.items() if k not in PIPELINE_KEYS}
        if node in num_slots:
            own = [x for x in plan.pipelines if node.same_as(x.loop)]
            by_threads = all(x.by_group and x.processor.has_threads for x in own)
            rolled = {} if by_threads or UNROLL in notes else ROLLED
            notes = {**notes, **rolled, NUM_SLOTS: num_slots[node]}
        body = put_first(in_front.get(node, []), _bare(new.body))
        return ir.with_body(new, body, annotations=notes)

    def block(node: ir.SBlock, mutator: Any) -> ir.SBlock:
        new = mutator.default_mutate(node)
        holds_copies = any(ir.uses_node(node, x) for x in slotted)
        return _around_copies(new, rings) if holds_copies else new

    body = ir.mutate(
        plan.threads.body,
        [(ir.SBlockRealize, put), (tirx.Bind, put), (ir.For, loop), (ir.SBlock, block)],
    )
    return put_first(in_front.get(None, []), body)


def _planned(
    plan: KernelPlan, trips: list[tirx.Bind], turns: list[tirx.Bind]
) -> tuple[dict[Any, Any], dict[Any, list[ir.Stmt]]]:
    """Return what statements become, and what goes before those of a loop; None: of all."""
    planned: dict[Any, Any] = {}
    for pipeline, trip in zip(plan.pipelines, trips, strict=True):
        planned.update({part: ir.seq() for part in (*pipeline.loads, *pipeline.site.spent)})
        planned[pipeline.loads[0]] = ir.seq(trip, join_loads(pipeline, trip.var))
    in_front: dict[Any, list[ir.Stmt]] = {}
    for ring, turn in zip(plan.store_rings, turns, strict=True):
        in_front.setdefault(ring.loops[-1] if ring.loops else None, []).append(turn)
        planned.update({x: leave_slot(x, ring.number, turn.var) for x in ring.stores})
    return planned, in_front


def _around_copies(block: ir.SBlock, rings: Mapping[Any, ir.Var]) -> ir.SBlock:
    """Name tiles that became rings as a whole: around their copies no iteration is known."""

    def named(regions: Iterable[Any]) -> list[Any]:
        return [ir.full_region(rings[x.source]) if x.source in rings else x for x in regions]

    return ir.with_block(
        block,
        alloc_buffers=[x for x in block.alloc_buffers if x not in rings],
        reads=named(block.reads),
        writes=named(block.writes),
    )


def _bare(body: ir.Stmt) -> ir.Stmt:
    """Take the block of an iteration away, unless it allocates anything but what became rings."""
    if not isinstance(body, ir.SBlockRealize) or CHANNEL in body.block.annotations:
        return body
    kept = body.block.alloc_buffers or body.block.annotations
    return body if kept else body.block.body


def _move_to_slot(stmt: Any, tile: ir.Var, ring: ir.Var, slot: Any) -> Any:
    one = tvm_ir.Range.from_min_extent(slot, 1)
    return ir.reindex(
        stmt, tile, ring, lambda indices: [slot, *indices], lambda ranges: [one, *ranges]
    )


def open_channels(kernel: Any, processor: Processor, plans: Any = None) -> Any:
    """Give slots to what has none in a kernel; `plans` are those for it, if they are known."""
    for plan in plan_pipelines(kernel, processor) if plans is None else plans:
        kernel = rewrite_pipelines(plan)
    return without_requests(kernel)


def _plan_pipeline(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give the loads of one function their slots."""
    processor = processor_of(func)

    def build(kernel: Any, notes: list[Note]) -> Any:
        plans = plan_pipelines(kernel, processor)
        for plan in plans:
            notes[:] = pipeline_notes(plan)
        late = mark_late(kernel, staged_loops(kernel)) if processor.has_threads else kernel
        plans = plans if late.same_as(kernel) else plan_pipelines(late, processor)
        kernel = open_channels(late, processor, plans)
        assert not plan_pipelines(kernel, processor), "PlanRingBuffers left a load open"
        return kernel

    return map_noted(func, build, map_bodies)


PlanRingBuffers = function_pass("PlanRingBuffers", _plan_pipeline)
