"""Declare, initialise, arrive at and wait for the mbarriers of channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import address, cluster, cp_async, fences, mbarrier, tma
from tvm_hopper.facts import arrivals
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.requests import keys
from tvm_hopper.requests.keys import AWAIT_FILLED, AWAIT_FREE, FILL_SLOT, FREE_SLOT
from tvm_hopper.transforms.common.channel import Channel, ChannelCall, find_calls, parse_call
from tvm_hopper.transforms.mechanisms.table import INSTRUCTIONS


@dataclass(frozen=True)
class Barriers:
    """The barriers of one channel; `empty` is None where its readers also fill it.

    `by_warps` says that each warp that reads a slot gives it back to all blocks of a cluster.
    """

    channel: Channel
    full: ir.Var
    empty: ir.Var | None
    by_warps: bool

    @staticmethod
    def of(channel: Channel, names: ir.Names, by_warps: bool) -> Barriers:
        """Declare the buffers."""

        def declare(name: str) -> ir.Var:
            shape = (channel.num_slots,)
            return ir.new_buffer(names.take(name), shape, "uint64", "shared.dyn", 8)

        full = declare("full")
        empty = declare("empty") if channel.num_arrivals else None
        return Barriers(channel, full, empty, by_warps)

    @property
    def buffers(self) -> list[ir.Var]:
        """Buffers to allocate."""
        return [self.full] if self.empty is None else [self.full, self.empty]

    def slot(self, trip: Any) -> Any:
        """Return the slot that an iteration uses."""
        return ir.as_int32(trip % self.channel.num_slots)

    def parity(self, trip: Any, start: int) -> Any:
        """Return the parity to wait for (`start` in the first iteration), as one remainder."""
        turn = trip // self.channel.num_slots
        return ir.as_int32((turn + start) % 2 if start else turn % 2)

    def lower(self, call: ChannelCall) -> Any:
        """Return the instruction that a call stands for."""
        trip = call.trip
        if call.name == FREE_SLOT:  # counted up by a whole turn, so that no dividend is negative
            return mbarrier.arrive(_at(self.empty, self.slot(trip + self.channel.num_slots)))
        slot = self.slot(trip)
        if call.name == FILL_SLOT:
            num_bytes = self.channel.num_bytes if call.num_bytes is None else call.num_bytes
            return mbarrier.arrive_expect_tx(_at(self.full, slot), num_bytes)
        if call.name == AWAIT_FILLED:
            parity = self.parity(trip, arrivals.CONSUMER_START_PARITY)
            return mbarrier.wait(_at(self.full, slot), parity)
        assert call.name == AWAIT_FREE
        parity = self.parity(trip, arrivals.PRODUCER_START_PARITY)
        return mbarrier.wait(_at(self.empty, slot), parity, of_cluster=self.by_warps)


def arrive_at_peer(call: ChannelCall, own: Barriers, remote: ir.Var) -> ir.Stmt:
    """Tell the producer of a block of the cluster of a slot that is free.

    What warps read by plain loads is in order before what that producer writes; operations that
    were waited for are.
    """
    here = _at(own.empty, own.slot(call.trip + own.channel.num_slots))
    return ir.seq(
        cluster.peer_address(
            tirx.BufferLoad(remote, [0]), address.generic_to_shared(here), call.peer
        ),
        mbarrier.arrive_at_peer(tirx.BufferLoad(remote, [0]), of_cluster=own.by_warps),
    )


def emit_start(
    kernel: Any, barriers: list[Barriers], thread: Any, in_cluster: bool
) -> list[ir.Stmt]:
    """Initialise the barriers once and let every thread, and the copy engine, know.

    Tensor maps are fetched before, so that the first copies need not wait for theirs. Where other
    blocks of the cluster arrive at these barriers, all meet.
    """
    maps: list[ir.Var] = []
    for call in ir.find_all(kernel, ir.Call, lambda x: x.op.name == "tirx.address_of"):
        (at,) = call.args
        if isinstance(at, ir.Var) and not any(at.same_as(x) for x in maps):
            maps.append(at)
    fetch = [tma.prefetch(tirx.address_of(x)) for x in maps]
    if not barriers:
        return [ir.IfThenElse(thread.equal(0), ir.seq(fetch), None)] if fetch else []

    def init(own: Barriers, slot: Any) -> ir.Stmt:
        full, empty = own.channel.full_count, own.empty
        return ir.seq(
            mbarrier.init(_at(own.full, slot), full),
            None if empty is None else mbarrier.init(_at(empty, slot), own.channel.empty_count),
        )

    loops = [ir.make_loop("slot", own.channel.num_slots, partial(init, own)) for own in barriers]
    # The fence of what clusters exchange follows, by the same thread: it tells of these, too.
    told = not in_cluster and bool(ir.find_all(kernel, ir.Call, mbarrier.is_fence_init))
    elected = ir.seq(fetch, loops, None if told else mbarrier.fence_init())
    start: list[ir.Stmt] = [ir.IfThenElse(thread.equal(0), elected, None)]
    if in_cluster:
        return [*start, ir.seq(cluster.arrive(), cluster.wait())]
    return [*start, tirx.Evaluate(fences.sync_threads())]


def emit_loads(copies: ir.Stmt, own: Barriers, policies: Mapping[str, Any]) -> ir.Stmt:
    """Turn calls of loads into the instructions that complete on the slot's barrier.

    `policies` are for L2, by the hint in a call's name.
    """
    barrier = _filled(copies, own)

    def instruction(call: ir.Call) -> Any:
        if call.op.name != "tirx.call_extern":
            return call
        if (found := parse_call(call)) is not None:
            return own.lower(found)
        name, _, hint = str(call.args[0].value).partition(keys.WITH_HINT)
        policy = policies.get(hint)
        load = INSTRUCTIONS.get(name)
        return call if load is None else load(*call.args[1:], barrier=barrier, policy=policy)

    return ir.replace(copies, ir.Call, instruction)


def elect_loader(kernel: Any, threads: ir.KernelThreads) -> Callable[[ir.Stmt], ir.Stmt]:
    """Return what lets one thread of a kernel without a producer issue loads before a loop.

    The assembler sees that the lane which `elect.sync` names is one; after `t == 0` it puts a loop
    over lanes around each box: 12 in a product of 128 x 128 x 192. In each iteration, too,
    products of that size were 0.998 and 0.955 times as fast as TVM's instead of 0.984 and 0.951,
    but those of 4096 in each direction 1.39 and 1.08 instead of 1.43 and 1.13 (H200, other days).
    Where the first thread has done something alone which no barrier told the others of, such as a
    store, it goes on.
    """
    if threads.var is None:
        return lambda stmt: stmt  # one thread, of a processor that has no more
    thread, count = threads.var, ir.static_int(threads.count)
    branches = ir.find_all(kernel, ir.IfThenElse, lambda x: isinstance(x.condition, tirx.EQ))
    alone = any(ir.depends_on(x.condition, [thread]) for x in branches)
    first = tirx.EQ(thread, ir.cast_like(0, thread))
    if alone or count is None or count < THREADS_PER_WARP:
        return lambda stmt: ir.IfThenElse(first, stmt, None)
    if count == THREADS_PER_WARP:
        return lambda stmt: ir.IfThenElse(fences.elect(), stmt, None)
    warp = thread < ir.cast_like(THREADS_PER_WARP, thread)
    return lambda stmt: ir.IfThenElse(warp, ir.IfThenElse(fences.elect(), stmt, None), None)


def emit_arrival(copies: ir.Stmt, own: Barriers) -> ir.Stmt:
    """Let each thread arrive at the slot's barrier once its own copies are complete."""
    return ir.seq(cp_async.arrive(_filled(copies, own)))


def _filled(copies: ir.Stmt, own: Barriers) -> Any:
    """Return the barrier of the slot that a block of loads fills."""
    (fill,) = find_calls(copies, FILL_SLOT)
    return _at(own.full, own.slot(fill.trip))


def _at(buffer: Any, slot: Any) -> Any:
    return tirx.address_of(tirx.BufferLoad(buffer, [slot]))
