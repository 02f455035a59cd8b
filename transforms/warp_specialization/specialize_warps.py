"""Split a kernel into a producer warp group, which loads, and consumers, which do the rest.

    for t in thread_binding(256, "threadIdx.x"):
        with sblock("tile", tile_work=1):
            for k in serial(8, annotations={"num_slots": 4, ...}):
                trip = k
                with sblock(async_op="tma_load", channel=0): fill_slot(0, trip); tma_load(...)
                with sblock(async_op="op"): op(acc, ring[trip % 4])
            C[...] = acc
  ->
    for t in thread_binding(384, "threadIdx.x"):
        if t < 128:
            setmaxnreg.dec 40
            if t == 0:
                with sblock("tile", tile_work=1):
                    for k in serial(8):
                        trip = k
                        await_free(0, trip)
                        with sblock(async_op="tma_load", channel=0): ...
        else:                                                   t := t - 128
            setmaxnreg.inc 232
            with sblock("tile", tile_work=1):
                for k in serial(8):
                    trip = k
                    await_filled(0, trip)
                    with sblock(async_op="op"): ...
                    with sblock(release=1):
                        if t % 128 == 0 and trip >= 1: free_slot(0, trip - 1)
                C[...] = acc

If the producer's threads each load a part (`in_parts`, cp.async), all run the loops and wait for
free slots, and one thread is elected for each block of other loads:

                    await_free(0, trip)
                    if t == 0:
                        with sblock(async_op="tma_load", channel=0): ...
                    with sblock(async_op="cp_async_arrive", channel=0, in_parts=1): ...

`release = n` says that the released slot is that of n iterations ago. Each role keeps the loops
around its own statements.  Consumers of plain loops arrive once a warp, after a `__syncwarp`, move
no registers, and leave the producer one warp.

Before: loads have channels (PlanRingBuffers).  After: agents wait for one another by channel
calls. Not here: waits for what a role itself issued (insert_syncs.py), barriers
(lower_channels_to_mbarriers.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import fences, registers
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.requests.fallbacks import report
from tvm_hopper.requests.keys import (
    AWAIT_FILLED,
    AWAIT_FREE,
    FREE_SLOT,
    KERNEL,
    RELEASE,
    RESERVED_SLOTS,
    TILE_WORK,
)
from tvm_hopper.requests.targets import arch_of
from tvm_hopper.transforms.common.channel import (
    Channel,
    find_channels,
    is_made_in_parts,
    make_call,
    threads_per_arrival,
)
from tvm_hopper.transforms.common.explain_notes import ArrivalsNote, FallbackNote, Note, RolesNote
from tvm_hopper.transforms.kernel_pass import function_pass, map_noted

from .role_statements import Loads, share, slot_of
from .specialize_warps_plan import Role, RolePlan, find_fallbacks, pending_option, plan_roles


def rewrite_roles(plan: RolePlan) -> ir.For:
    """Build the kernel's thread axis again, with roles."""
    thread = plan.axis.loop_var
    (kernel,) = ir.find_blocks(plan.axis, KERNEL)
    (work,) = [x for x in ir.find_all(kernel, ir.SBlockRealize) if TILE_WORK in x.block.annotations]
    first = plan.consumer.agent.first_thread
    roles = ir.IfThenElse(
        thread < first, emit_producer(plan, work, thread), emit_consumer(plan, work, thread)
    )
    body: ir.Stmt = ir.mark_ours(roles)
    if plan.moves_registers:
        # setmaxnreg needs the register count at entry: __launch_bounds__(threads, blocks).
        key = "tirx.launch_bounds_min_blocks_per_sm"
        count = tirx.IntImm("int32", plan.blocks)
        body = tirx.AttrStmt(tirx.IntImm("int32", 0), key, count, body)
    block = ir.with_block(kernel, body=body)
    return ir.with_body(
        plan.axis,
        ir.SBlockRealize([], True, block),
        extent=tirx.IntImm(ir.dtype_of(plan.axis.extent), plan.num_threads),
    )


def emit_producer(plan: RolePlan, work: ir.SBlockRealize, thread: Any) -> ir.Stmt:
    """Keep the loads: one thread waits for a free slot and issues them.

    Where each thread makes a part of some, all wait for their slots, and one issues the others.
    """

    def elect(stmt: Any) -> ir.Stmt:
        return ir.IfThenElse(thread.equal(0), stmt, None)

    def keep(loads: Loads, _: list[ir.Stmt], __: Any) -> tuple[list[Any], list[Any]]:
        wait = make_call(AWAIT_FREE, *slot_of(loads[0]))
        if not plan.loads_in_parts:
            return [wait, *loads], []
        if not any(is_made_in_parts(load.block) for load in loads):
            return [elect(ir.seq(wait, loads))], []
        made = [load if is_made_in_parts(load.block) else elect(load) for load in loads]
        return [wait, *made], []

    kept = ir.fresh_variables(share(work, keep, plan, is_producer=True))
    loads = kept if plan.loads_in_parts else elect(kept)
    return ir.seq(_move_registers(registers.setmaxnreg_dec, plan.producer), loads)


def emit_consumer(plan: RolePlan, work: ir.SBlockRealize, thread: Any) -> ir.Stmt:
    """Keep everything else: wait for the loads, and give slots back after what reads them."""

    def keep(loads: Loads, beside: list[ir.Stmt], when: Any) -> tuple[list[Any], list[Any]]:
        filled = make_call(AWAIT_FILLED, *slot_of(loads[0]))
        return [filled], emit_release(plan, loads, beside, thread, when)

    own, threads = thread - plan.consumer.agent.first_thread, plan.consumer.agent.num_threads
    kept: Any = share(work, keep, plan, is_producer=False)
    if plan.turns == 1:
        kept = ir.substitute(kept, {thread: own})
    else:  # until ScheduleTiles gives the other sets separate tiles
        kept = ir.with_block(kept.block, annotations={TILE_WORK: plan.turns})
        kept = ir.substitute(ir.SBlockRealize([], True, kept), {thread: own % threads})
        kept = ir.IfThenElse((own // threads).equal(0), kept, None)
    return ir.seq(_move_registers(registers.setmaxnreg_inc, plan.consumer), kept)


def emit_release(
    plan: RolePlan, loads: Loads, beside: list[ir.Stmt], thread: Any, when: Any
) -> list[ir.Stmt]:
    """Let one thread of a warp or warp group give back the slot of `pending` iterations ago.

    - `when`: in which iteration the slot is read for the last time; None: in each.
    """
    if when is not None and ir.is_const(when, 0):
        return []
    channel, trip = slot_of(loads[0])
    slots = [x.source for load in loads for x in load.block.writes]
    unit = threads_per_arrival(slots, beside)
    # With no slot to spare the producer waits for this one before it fills the next.
    has_spare = int(slots[0].shape[0]) > plan.pending
    pending = plan.pending if unit > THREADS_PER_WARP and has_spare else 0
    pending = max(pending, int(loads[0].block.annotations.get(RESERVED_SLOTS, 0)))
    elected = (thread % unit).equal(0)
    if pending:
        # Each set of consumers releases the slots that it left in flight after its own tile.
        count = trip if plan.turns == 1 else _within(plan, trip)
        elected = tirx.And(elected, count >= pending)
    elected = elected if when is None else tirx.And(elected, when)
    arrive = ir.Evaluate(make_call(FREE_SLOT, channel, trip - pending if pending else trip))
    meet = None if unit > THREADS_PER_WARP else fences.sync_warp()
    block = ir.opaque_block(
        "release",
        ir.seq(meet, ir.IfThenElse(elected, arrive, None)),
        annotations={RELEASE: [pending, plan.consumer.agent.num_threads // unit]},
    )
    return [block]


def _within(plan: RolePlan, trip: ir.Var) -> Any:
    """Return the number of an iteration, from 0, within an output tile."""
    (bind,) = ir.find_all(plan.axis, tirx.Bind, lambda x: x.var.same_as(trip))
    return bind.value


def _move_registers(move: Callable[[int], Any], role: Role) -> Any:
    if role.num_registers is None:
        return None
    return move(role.num_registers)


def _specialize_warps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Build the roles of one function."""
    arch = arch_of(func)
    pending = pending_option(func)

    def build(kernel: ir.For, notes: list[Note]) -> ir.For:
        plans = plan_roles(kernel, arch, pending)
        for plan in plans:
            kernel = ir.replace_nodes(kernel, ir.For, {plan.axis: rewrite_roles(plan)})
            slow = report(func, find_fallbacks(plan, pending))
            facts = _facts(plan, find_channels(kernel))
            notes[:] = [*facts, *map(FallbackNote, slow)]
        assert not plan_roles(kernel, arch), "SpecializeWarps left a loop after"
        return kernel

    return map_noted(func, build)


SpecializeWarps = function_pass("SpecializeWarps", _specialize_warps)


def _facts(plan: RolePlan, channels: list[Channel]) -> list[Note]:
    """Return what `explain` says of the roles."""
    producer, consumer = plan.producer, plan.consumer
    few, many = producer.num_registers, consumer.num_registers
    roles = RolesNote(
        producer.agent.num_threads,
        consumer.agent.num_threads * plan.turns,
        plan.pending,
        None if few is None or many is None else (few, many),
        plan.turns,
        plan.blocks,
    )
    handed_over = [channel for channel in channels if channel.num_arrivals]
    return [roles, *(ArrivalsNote(x.number, x.full_count, x.empty_count) for x in handed_over)]
