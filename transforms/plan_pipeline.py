"""Give loads the slots of a ring, and count the trips through it.

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

Loads that one iteration issues share a channel and go where the first of them stands, if nothing
in between forbids it (`plan/load_sites.py`). Every load gets a channel: where nothing is pipelined,
and outside of loops, it has one slot. Iterations run in the order of the program still; that the
slots are there lets later passes move the loads ahead, or to a producer of their own. So a block of
loads stands alone: it takes along the variables that it uses of those bound in the loop.

Before: each tile is written by one `tma_load` block.  After: no load without a channel, and no
annotation is left for TVM's own pipelining to act on.
Not here: who loads (specialize_warps.py), how far ahead (expand_pipeline.py), the barriers
(lower_channels.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir as tvm_ir
from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.facts.arch import Arch
from tvm_hopper.plan.channel import TRIP, completes_by_group, count_trips, fill, filled_bytes
from tvm_hopper.plan.notes import RingNote, note_kernels
from tvm_hopper.plan.pipeline_plan import KernelPlan, PipelinePlan, plan_pipelines
from tvm_hopper.requests.keys import CHANNEL, KERNEL, NUM_SLOTS, PIPELINE_KEYS, TILE_WORK
from tvm_hopper.requests.targets import arch_of

# Unrolled by the CUDA compiler, iterations grow code and make ptxas serialise products (C7519).
ROLLED = {"disable_unroll": True}


def rewrite_pipelines(plan: KernelPlan) -> ir.For:
    """Build the kernel's work anew, around rings."""
    names = ir.Names()
    rings = {
        tile: _new_ring(tile, pipeline.num_slots, names)
        for pipeline in plan.pipelines
        for tile in pipeline.tiles
    }
    trips = [_count(pipeline, plan.is_persistent) for pipeline in plan.pipelines]
    body = ir.drop_empty(_place_loads(plan, trips, rings))
    for pipeline, trip in zip(plan.pipelines, trips, strict=True):
        slot = ir.as_int32(trip.var % pipeline.num_slots)
        for tile in pipeline.tiles:
            body = _move_to_slot(body, tile, rings[tile], slot)
    return ir.with_body(plan.axis, _in_kernel_block(body, list(rings.values())))


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


def _count(plan: PipelinePlan, is_persistent: bool) -> tirx.Bind:
    """Bind the trip of a channel to a variable of its own."""
    count = count_trips(plan.loops)
    if is_persistent:
        count = ir.as_int32(count)
    return tirx.Bind(ir.Var(TRIP, ir.dtype_of(count)), count)


def _place_loads(plan: KernelPlan, trips: list[tirx.Bind], rings: Mapping[Any, ir.Var]) -> ir.Stmt:
    """Join loads where the first of them stands, in one walk: sites may stand inside of others."""
    planned: dict[Any, Any] = {}
    num_slots: dict[Any, int] = {}
    for pipeline, trip in zip(plan.pipelines, trips, strict=True):
        planned.update({part: ir.seq() for part in (*pipeline.loads, *pipeline.site.spent)})
        planned[pipeline.loads[0]] = ir.seq(trip, _join_loads(pipeline, trip.var))
        if pipeline.loop is not None:
            num_slots[pipeline.loop] = pipeline.num_slots

    def put(node: Any, mutator: Any) -> Any:
        new = planned.get(node)
        return mutator.default_mutate(node) if new is None else new

    def loop(node: ir.For, mutator: Any) -> ir.For:
        new = mutator.default_mutate(node)
        if node not in num_slots:
            return new
        notes = {k: v for k, v in new.annotations.items() if k not in PIPELINE_KEYS}
        notes = {**notes, **ROLLED, NUM_SLOTS: num_slots[node]}
        return ir.with_body(new, _bare(new.body), annotations=notes)

    def block(node: ir.SBlock, mutator: Any) -> ir.SBlock:
        new = mutator.default_mutate(node)
        if not any(ir.uses_node(node, x) for pipeline in plan.pipelines for x in pipeline.loads):
            return new
        # Around loads no trip is known: their tiles, which became rings, are named as a whole.
        return ir.with_block(
            new,
            alloc_buffers=[x for x in new.alloc_buffers if x not in rings],
            **{
                kind: [
                    ir.full_region(rings[x.source]) if x.source in rings else x
                    for x in getattr(new, kind)
                ]
                for kind in ("reads", "writes")
            },
        )

    return ir.mutate(
        plan.axis.body,
        [(ir.SBlockRealize, put), (tirx.Bind, put), (ir.For, loop), (ir.SBlock, block)],
    )


def _bare(body: ir.Stmt) -> ir.Stmt:
    """Take the block of an iteration away, unless it allocates anything but what became rings."""
    if not isinstance(body, ir.SBlockRealize) or CHANNEL in body.block.annotations:
        return body
    kept = body.block.alloc_buffers or body.block.annotations
    return body if kept else body.block.body


def _join_loads(plan: PipelinePlan, trip: ir.Var) -> ir.Stmt:
    """Make one block of the loads that a trip issues, which complete together."""
    blocks = [load.block for load in plan.loads]
    first = blocks[0]
    loads = [block.body for block in blocks]
    num_bytes = _sum([filled_bytes(block) for block in blocks])
    begin = fill(plan.number, trip, num_bytes)
    binds = plan.site.binds
    # Bytes that are known at run time alone may be counted by what the loads bind.
    body = ir.seq(*(begin, binds) if isinstance(num_bytes, int) else (binds, begin), loads)
    return ir.opaque_block(
        first.name_hint,
        ir.fresh_variables(body) if plan.site.binds else body,
        reads=[region for block in blocks for region in block.reads],
        writes=[region for block in blocks for region in block.writes],
        annotations={**first.annotations, CHANNEL: plan.number},
    )


def _sum(terms: list[Any]) -> Any:
    """Add ints and integer expressions; an int if all are."""
    known = sum(x for x in terms if isinstance(x, int))
    rest = [x for x in terms if not isinstance(x, int)]
    return ir.simplify(sum(rest[1:], rest[0]) + known) if rest else known


def _move_to_slot(stmt: Any, tile: ir.Var, ring: ir.Var, slot: Any) -> Any:
    one = tvm_ir.Range.from_min_extent(slot, 1)
    return ir.reindex(
        stmt, tile, ring, lambda indices: [slot, *indices], lambda ranges: [one, *ranges]
    )


def open_channels(kernel: ir.For, arch: Arch) -> ir.For:
    """Give a channel to every load of a kernel that has none."""
    for plan in plan_pipelines(kernel, arch):
        kernel = ir.replace_nodes(kernel, ir.For, {plan.axis: rewrite_pipelines(plan)})
    return kernel


@prim_func_pass(opt_level=0, name="tvm_hopper.PlanPipeline")
class PlanPipeline:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Give the loads of one function their slots."""
        notes, arch = {}, arch_of(func)

        def build(kernel: ir.For) -> ir.For:
            number = ir.number_of(func, kernel)
            plans = plan_pipelines(kernel, arch)
            for plan in plans:
                notes[number] = _facts(plan)
                kernel = ir.replace_nodes(kernel, ir.For, {plan.axis: rewrite_pipelines(plan)})
            assert not plan_pipelines(kernel, arch), "PlanPipeline left a load without a channel"
            return kernel

        return note_kernels(ir.map_kernels(func, build), notes)


def _facts(plan: KernelPlan) -> list[RingNote]:
    """Return what `explain` says of the rings."""
    return [
        RingNote(x.number, x.num_slots, x.tx_bytes, completes_by_group(x.loads[0].block))
        for x in plan.pipelines
    ]
