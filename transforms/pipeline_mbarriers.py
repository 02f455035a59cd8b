"""Split a pipelined loop between a producer and consumer warp groups around a ring of tiles.

    for t in thread_binding(256, "threadIdx.x"):
        for k in serial(K, annotations={"software_pipeline_stage": [0, 3], ...}):
            tile = alloc(shared)
            with sblock(async_op="tma_load"): tma_load(&tile, A_map, ...)
            with sblock(async_op="wgmma"): wgmma(acc, tile)
        C[...] = acc
  ->
    for t in thread_binding(384, "threadIdx.x"):
        ring = alloc(4 tiles); full, empty = alloc(4 mbarriers each)
        if t == 0:
            for s in range(4): mbarrier.init(full[s], 1); mbarrier.init(empty[s], 2)
            fence.mbarrier_init
        storage_sync
        if t < 128:
            setmaxnreg.dec 40
            if t == 0:
                for k in range(K):
                    mbarrier_wait(empty[k % 4], (k // 4 + 1) % 2)
                    mbarrier.arrive.expect_tx(full[k % 4], bytes)
                    cp.async.bulk.tensor(&ring[k % 4], A_map, ..., full[k % 4])
        else:                                                   t := t - 128
            setmaxnreg.inc 232
            for k in range(K):
                mbarrier_wait(full[k % 4], k // 4 % 2)
                with sblock(async_op="wgmma"): wgmma(acc, ring[k % 4])
                with sblock(release=1):
                    if t % 128 == 0 and k >= 1: mbarrier.arrive(empty[(k - 1) % 4])
            C[...] = acc

The number of slots is the distance of TVM's stages plus one. `release = n` says that the slot given
back is the one of n iterations ago. A persistent kernel gets a loop over its output tiles around
each role's work, and counts iterations through all of them, so that slots and parities carry on.

Before: copies are tma_load blocks, the multiplication a wgmma block over all threads.  After: no
pipeline annotation is left for stock passes to act on; WGMMA is still not waited for.
Not here: WGMMA's own fences and waits (insert_async_waits.py), offsets (merge_shared.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import fences, mbarrier, registers, tma
from tvm_hopper.facts import arrivals
from tvm_hopper.facts.hopper import WARP_GROUP_THREADS
from tvm_hopper.fallbacks import Fallback, report
from tvm_hopper.keys import RELEASE, TILE_LOOP, TMA_LOAD, WGMMA_PENDING
from tvm_hopper.options import read
from tvm_hopper.plan.ring_plan import RingPlan, plan_ring

# Unrolled by the CUDA compiler, iterations grow code and make ptxas serialise WGMMA (C7519).
ROLLED = {"disable_unroll": True}


@dataclass(frozen=True)
class Ring:
    """The buffers of one plan: tiles with a leading slot dimension, and the barriers."""

    plan: RingPlan
    tiles: dict[Any, ir.Var]
    full: ir.Var
    empty: ir.Var

    @staticmethod
    def of(plan: RingPlan) -> Ring:
        """Declare the buffers."""
        names = ir.Names()
        tiles = {
            tile: ir.new_buffer(
                names.take(tile.name),
                (plan.stages, *(int(x) for x in tile.shape)),
                ir.dtype_of(tile),
                tile.scope(),
                int(tile.ty.data_alignment),
            )
            for tile in plan.tiles
        }
        full, empty = (
            ir.new_buffer(names.take(name), (plan.stages,), "uint64", "shared.dyn", 8)
            for name in ("full", "empty")
        )
        return Ring(plan, tiles, full, empty)

    def at_slot(self, stmt: Any, slot: Any) -> Any:
        """Move accesses of the tiles to one slot of the ring."""
        for tile, ring in self.tiles.items():
            stmt = _move_to_slot(stmt, tile, ring, slot)
        return stmt


def _move_to_slot(stmt: Any, tile: ir.Var, ring: ir.Var, slot: Any) -> Any:
    whole = list(ir.full_region(ring).region)
    return ir.reindex(stmt, tile, ring, lambda indices: [slot, *indices], lambda _: whole)


def rewrite_ring(plan: RingPlan) -> ir.For:
    """Build the kernel's thread axis anew, with roles."""
    ring = Ring.of(plan)
    thread = plan.axis.loop_var
    roles = ir.IfThenElse(
        thread < WARP_GROUP_THREADS, emit_producer(ring, thread), emit_consumer(ring, thread)
    )
    # Stock ThreadSync would put __syncthreads into the roles' branches; this marks hand-made ones.
    body = tirx.AttrStmt(
        ir.ROLES,
        "hand_threaded",
        tirx.IntImm("int32", 1),
        ir.seq(emit_barriers(ring, thread), roles),
    )
    # setmaxnreg needs the register count at entry: __launch_bounds__(threads, 1).
    body = tirx.AttrStmt(
        tirx.IntImm("int32", 0),
        "tirx.launch_bounds_min_blocks_per_sm",
        tirx.IntImm("int32", 1),
        body,
    )
    shared = [*ring.tiles.values(), ring.full, ring.empty]
    block = ir.with_block(
        plan.kernel,
        name_hint=ir.KERNEL_BLOCK,
        body=body,
        alloc_buffers=[*plan.kernel.alloc_buffers, *shared],
    )
    return ir.with_body(
        plan.axis,
        ir.SBlockRealize([], True, block),
        extent=tirx.IntImm(ir.dtype_of(plan.axis.extent), plan.threads),
    )


def emit_barriers(ring: Ring, thread: Any) -> ir.Stmt:
    """Initialise the barriers once and let every thread, and the copy engine, know."""
    plan = ring.plan

    def init(slot: Any) -> ir.Stmt:
        return ir.seq(
            mbarrier.init(_at(ring.full, slot), plan.full_count),
            mbarrier.init(_at(ring.empty, slot), plan.empty_count),
        )

    elected = ir.seq(ir.make_loop("slot", plan.stages, init), mbarrier.fence_init())
    return ir.seq(ir.IfThenElse(thread.equal(0), elected, None), fences.sync_threads())


def emit_producer(ring: Ring, thread: Any) -> ir.Stmt:
    """Fill slot after slot: one thread waits for a free slot and issues the stage's copies."""
    plan = ring.plan

    def stage(k: Any, count: Any) -> ir.Stmt:
        slot = _slot(plan, count)
        parity = _parity(plan, count, arrivals.PRODUCER_START_PARITY)
        copies = [ir.substitute(load.block.body, {plan.loop.loop_var: k}) for load in plan.loads]
        return ir.seq(
            mbarrier.wait(_at(ring.empty, slot), parity),
            mbarrier.arrive_expect_tx(_at(ring.full, slot), plan.tx_bytes),
            [emit_tma(ring.at_slot(copy, slot), _at(ring.full, slot)) for copy in copies],
        )

    return ir.seq(
        registers.setmaxnreg_dec(plan.producer_registers),
        ir.IfThenElse(thread.equal(0), _tiles(plan, lambda tile: _loop(plan, stage, tile)), None),
    )


def emit_tma(copies: ir.Stmt, barrier: Any) -> ir.Stmt:
    """Turn `tma_load` calls into the instruction that completes on a barrier."""

    def instruction(call: ir.Call) -> Any:
        if call.op.name != "tirx.call_extern" or call.args[0].value != TMA_LOAD:
            return call
        _, address, tensor_map, *coordinates = call.args
        return tma.load(address, tensor_map, coordinates, barrier)

    return ir.replace(copies, ir.Call, instruction)


def emit_consumer(ring: Ring, thread: Any) -> ir.Stmt:
    """Multiply slot after slot and give each back once nothing reads it any more."""
    plan = ring.plan
    own = thread - WARP_GROUP_THREADS

    def stage(k: Any, count: Any) -> ir.Stmt:
        slot = _slot(plan, count)
        computes = [ir.substitute(part, {plan.loop.loop_var: k}) for part in plan.computes]
        return ir.seq(
            mbarrier.wait(
                _at(ring.full, slot), _parity(plan, count, arrivals.CONSUMER_START_PARITY)
            ),
            [ring.at_slot(part, slot) for part in computes],
            emit_release(ring, thread, count),
        )

    def one_tile(tile: Any) -> ir.Stmt:
        work = ir.seq(plan.before, _loop(plan, stage, tile), plan.after)
        return ir.substitute(work, {thread: own})

    return ir.seq(registers.setmaxnreg_inc(plan.consumer_registers), _tiles(plan, one_tile))


def emit_release(ring: Ring, thread: Any, count: Any) -> ir.SBlockRealize:
    """Let one thread of a warp group give back the slot of `pending` iterations ago."""
    plan = ring.plan
    elected = (thread % WARP_GROUP_THREADS).equal(0)
    if plan.pending:
        elected = tirx.And(elected, count >= plan.pending)
    freed = _at(ring.empty, _slot(plan, count - plan.pending + plan.stages))
    arrive = ir.Evaluate(mbarrier.arrive(freed))
    return ir.opaque_block(
        "release", ir.IfThenElse(elected, arrive, None), annotations={RELEASE: plan.pending}
    )


def _tiles(plan: RingPlan, work: Callable[[Any], ir.Stmt]) -> ir.Stmt:
    """Loop over the output tiles of a thread block; how many, RasterBlocks knows."""
    if not plan.persistent:
        return work(None)
    tile = ir.Var("tile", "int32")
    return ir.For(tile, 0, 1, ir.ForKind.SERIAL, work(tile), annotations={TILE_LOOP: 1, **ROLLED})


def _loop(plan: RingPlan, stage: Callable[[Any, Any], ir.Stmt], tile: Any) -> ir.Stmt:
    """Loop over k; `stage` also gets the number of iterations since the kernel's start."""
    loop = plan.loop
    k = ir.Var(loop.loop_var.name, ir.dtype_of(loop.loop_var))
    count = k if tile is None else ir.as_int32(loop.extent) * tile + ir.as_int32(k)
    return ir.For(k, loop.min, loop.extent, ir.ForKind.SERIAL, stage(k, count), annotations=ROLLED)


def _parity(plan: RingPlan, count: Any, start: int) -> Any:
    """Return the parity to wait for, `start` in the first turn, as one foldable remainder."""
    turn = count // plan.stages
    return ir.as_int32((turn + start) % 2 if start else turn % 2)


def _slot(plan: RingPlan, count: Any) -> Any:
    return ir.as_int32(count % plan.stages)


def _at(buffer: ir.Var, slot: Any) -> Any:
    return tirx.address_of(tirx.BufferLoad(buffer, [slot]))


@prim_func_pass(opt_level=0, name="tvm_hopper.PipelineMbarriers")
class PipelineMbarriers:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Build the rings of one function."""
        notes = {}
        pending = int(read(WGMMA_PENDING, func, default=0))

        def fallbacks(plan: RingPlan) -> list[Fallback]:
            if WGMMA_PENDING in plan.loop.annotations or plan.pending == pending:
                return []
            found = f"{plan.pending} WGMMA groups in flight instead of {pending}"
            return [Fallback(plan.where, found, f"at least {pending + 1} stages")]

        def build(kernel: ir.For) -> ir.For:
            number = ir.number_of(func, kernel)
            plans = plan_ring(kernel, pending)
            for plan in plans:
                notes[number] = {**_facts(plan), "fallbacks": report(func, fallbacks(plan))}
                kernel = ir.replace_nodes(kernel, ir.For, {plan.axis: rewrite_ring(plan)})
            assert not plan_ring(kernel), "PipelineMbarriers left a loop behind"
            return kernel

        return ir.note_plan(ir.map_kernels(func, build), notes)


def _facts(plan: RingPlan) -> dict[str, Any]:
    """Return what `explain` says of the ring."""
    return {
        "stages": plan.stages,
        "consumers": plan.consumers,
        "wgmma_pending": plan.pending,
        "registers": [plan.producer_registers, plan.consumer_registers],
        "tx_bytes": plan.tx_bytes,
        "arrive_counts": {"full": plan.full_count, "empty": plan.empty_count},
        "threads": plan.threads,
    }
