"""Let each consumer begin steps behind the one before it: a part of SpecializeWarps.

    with sblock("tile", tile_work=1):
        for k in serial(8): trip = k; await_filled(0, trip); ...
        C[...] = acc
  ->
    with sblock("tile", tile_work=1):
        if t // 128 >= 1: bar.sync 10 + t // 128, 256
        for k in serial(8):
            if t // 128 < 1 and k == 2: bar.arrive 11 + t // 128, 256
            trip = k; await_filled(0, trip); ...
        C[...] = acc

so that one of them multiplies while another one computes its epilogue, and the tensor cores have
work at both ends of a tile. Consumers that run in step again, for want of loads, are set apart by
the next tile. There are as many trips as slots, or nobody waits: the first consumer comes to its
barrier again when the next one has given back a slot, behind its own.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import fences
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS
from tvm_hopper.plan.roles import RolePlan
from tvm_hopper.requests.keys import NUM_SLOTS

LAG_BARRIER = 11  # the first of as many as consumers wait; those below are of roles and turns


def lag_consumers(work: ir.SBlockRealize, plan: RolePlan, thread: Any) -> ir.SBlockRealize:
    """Set the consumers of a tile apart, in their share of its work.

    Parameters
    ----------
    work
        The block of what consumers do for one tile.
    plan
        With a lag, of one pipelined loop.
    thread
        Number of a consumer's thread, among those of all consumers.
    """
    if not plan.lag:
        return work
    (pipelined,) = plan.loops
    (loop,) = ir.find_all(work, ir.For, lambda x: x.loop_var.same_as(pipelined.loop_var))
    slots = int(pipelined.annotations[NUM_SLOTS])
    trips = ir.static_int(loop.extent)
    if trips is not None and trips < slots:
        return work
    consumer, last = thread // WARP_GROUP_THREADS, plan.num_consumers - 1
    together = 2 * WARP_GROUP_THREADS  # one arrives, the next one waits

    def where(condition: Any, call: Any) -> ir.Stmt:
        if trips is None:
            condition = tirx.And(condition, loop.extent >= slots)
        return ir.IfThenElse(condition, tirx.Evaluate(call), None)

    wait = where(consumer >= 1, fences.sync_named(consumer + (LAG_BARRIER - 1), together))
    is_there = tirx.And(consumer < last, ir.as_int32(loop.loop_var - loop.min).equal(plan.lag))
    arrive = where(is_there, fences.arrive_named(consumer + LAG_BARRIER, together))
    lagging = ir.with_body(loop, ir.seq(arrive, loop.body))
    block = work.block
    body = ir.replace_nodes(block.body, ir.For, {loop: lagging})
    return ir.SBlockRealize([], True, ir.with_block(block, body=ir.seq(wait, body)))
