"""Turn channels into mbarriers: a `full` and an `empty` one for each slot.

    with sblock("kernel"):
        ring = alloc(4 tiles)
        if t < 128:
            if t == 0:
                for k in range(8):
                    trip = k
                    await_free(0, trip)
                    with sblock(async_op="tma_load", channel=0):
                        fill_slot(0, trip)
                        tma_load(&ring[trip % 4], A_map, ...)
        else:
            for k in range(8):
                trip = k
                await_filled(0, trip)
                ...
                if t % 128 == 0: free_slot(0, trip)
  ->
    with sblock("kernel"):
        ring = alloc(4 tiles); full, empty = alloc(4 mbarriers each)
        if t == 0:
            prefetch.tensormap(A_map)
            for s in range(4): mbarrier.init(full[s], 1); mbarrier.init(empty[s], 2)
            fence.mbarrier_init
        storage_sync
        if t < 128:
            if t == 0:
                for k in range(8):
                    mbarrier_wait(empty[k % 4], (k // 4 + 1) % 2)
                    mbarrier.arrive.expect_tx(full[k % 4], bytes)
                    cp.async.bulk.tensor(&ring[k % 4], A_map, ..., full[k % 4])
        else:
            for k in range(8):
                mbarrier_wait(full[k % 4], k // 4 % 2)
                ...
                if t % 128 == 0: mbarrier.arrive(empty[k % 4])

What each thread of the producer makes a part of (cp.async) it also arrives for by itself, and
`full` counts that: 32 for a warp, one more where others of the channel's loads are issued by one.

    await_free(0, trip)                                     mbarrier_wait(empty[k % 4], ...)
    with sblock(channel=0, in_parts=1):                     for turn in range(2):
        fill_slot(0, trip)                            ->        cp.async(&ring[k % 4, ...], ...)
        for chunk in range(64): cp_async(...)               cp.async.mbarrier.arrive.noinc(full[..])

Without a producer role the first thread loads (before a loop: an elected lane of the first warp).
There is no `empty` then: program order, and its barriers, keep a slot from being overwritten too
early.

Before: waits and fences are (InsertSyncs).  After: no channel, no `tma_load` without a barrier.
Not here: offsets (merge_shared_buffers.py).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import map_bodies
from tvm_hopper.requests.keys import (
    AHEAD,
    CHANNEL,
    FREE_SLOT,
    KERNEL,
    READ_SLOT,
    RELEASE,
    WITH_HINT,
)
from tvm_hopper.transforms.common.channel import (
    Channel,
    count_loading_threads,
    find_calls,
    find_channels,
    find_trips,
    is_freed_by_warps,
    is_made_in_parts,
    parse_call,
)
from tvm_hopper.transforms.kernel_pass import function_pass
from tvm_hopper.transforms.launch.l2_eviction_policies import create_policies
from tvm_hopper.transforms.mechanisms.cp_async_emit import emit_chunks, share_out
from tvm_hopper.transforms.pipeline.tma_store_groups import find_rings, without_slots

from .channel_mbarriers import (
    Barriers,
    arrive_at_peer,
    elect_loader,
    emit_arrival,
    emit_loads,
    emit_start,
)
from .out_of_bounds_rows import clear_in_consumers, start_spare_rows

# A producer has few registers, and the addresses of many copies at once would spill: 356 bytes with
# all 32 turns of two tiles in 40 registers, none with 4 (NVRTC 13.0).
MOST_UNROLLED = 4


def rewrite_channels(kernel: Any, channels: list[Channel]) -> Any:
    """Declare and initialise the barriers, and put instructions in place of calls."""
    names = ir.Names()
    by_peers = {x.channel for x in find_calls(kernel, FREE_SLOT) if x.peer is not None}
    barriers = {
        x.number: Barriers.of(x, names, x.number in by_peers and is_freed_by_warps(kernel, x))
        for x in channels
        if not x.by_group
    }
    threads = ir.threads_of(kernel)
    thread = threads.var
    elect = elect_loader(kernel, threads)
    remote = _peer_register(kernel, names)
    start: list[ir.Stmt] = []
    if thread is not None:
        cleared = clear_in_consumers(kernel, threads)
        start = start_spare_rows(kernel, threads) if cleared is None else []
        kernel = kernel if cleared is None else cleared
        start += emit_start(kernel, list(barriers.values()), thread, in_cluster=bool(remote))
    registers = {hint: _new_policy(names, hint) for hint in _find_hints(kernel)}
    policies = {hint: tirx.BufferLoad(register, [0]) for hint, register in registers.items()}
    num_loading = count_loading_threads(kernel)
    kernel = without_slots(_inline_trips(kernel))

    def load(realize: ir.SBlockRealize, mutator: Any) -> ir.Stmt:
        block = realize.block
        if RELEASE in block.annotations:
            notes = {k: v for k, v in block.annotations.items() if k != RELEASE}
            block = ir.with_block(block, annotations=notes)
            return mutator.default_mutate(ir.SBlockRealize([], True, block))
        if CHANNEL not in block.annotations:
            return mutator.default_mutate(realize)
        own = barriers.get(int(block.annotations[CHANNEL]))
        in_parts = is_made_in_parts(block)
        most = MOST_UNROLLED if in_parts else None
        body = block.body if thread is None else share_out(block.body, thread, num_loading, most)
        if own is None:  # its threads wait for groups of their own
            return emit_chunks(body)
        if in_parts:
            return ir.seq(emit_chunks(body), emit_arrival(body, own))
        assert thread is not None, "barriers are for threads to meet at"
        copies = emit_loads(body, own, policies)
        if own.empty is not None:
            return copies
        in_front = 0 in block.annotations.get(AHEAD, [])  # of the loop that goes on
        return elect(copies) if in_front else ir.IfThenElse(thread.equal(0), copies, None)

    def call(node: ir.Call, mutator: Any) -> Any:
        found = parse_call(node)
        return (
            mutator.default_mutate(node) if found is None else barriers[found.channel].lower(found)
        )

    def tell(stmt: ir.Evaluate, mutator: Any) -> ir.Stmt:
        found = parse_call(stmt.value)
        if found is None or found.peer is None:
            return mutator.default_mutate(stmt)
        own = barriers[found.channel]
        return arrive_at_peer(found, own, remote[0])

    kernel = ir.mutate(kernel, [(ir.SBlockRealize, load), (ir.Evaluate, tell), (ir.Call, call)])
    (block,) = ir.find_blocks(kernel, KERNEL)
    shared = [buffer for x in barriers.values() for buffer in x.buffers]
    made, kinds = create_policies(registers, kernel)
    start += made
    new = ir.with_block(
        block,
        body=_behind_marks(block.body, ir.seq(start)) if start else block.body,
        alloc_buffers=[*block.alloc_buffers, *shared, *registers.values(), *kinds, *remote],
        annotations={k: v for k, v in block.annotations.items() if k != KERNEL},
    )
    return ir.replace_nodes(kernel, ir.SBlock, {block: new})


def _find_hints(kernel: Any) -> list[str]:
    """Return what loads say that L2 is to do with their bytes."""
    calls = ir.find_all(kernel, ir.Call, lambda x: x.op.name == "tirx.call_extern")
    hints = [str(x.args[0].value).partition(WITH_HINT)[2] for x in calls]
    return [*dict.fromkeys(hint for hint in hints if hint)]


def _peer_register(kernel: Any, names: ir.Names) -> list[ir.Var]:
    """Return a register for addresses in other blocks, where slots are freed there, too."""
    if all(call.peer is None for call in find_calls(kernel, FREE_SLOT)):
        return []
    return [ir.new_buffer(names.take("remote"), (1,), "uint32", "local")]


def _new_policy(names: ir.Names, hint: str) -> ir.Var:
    return ir.new_buffer(names.take(hint), (1,), "uint64", "local")


def _inline_trips(kernel: Any) -> Any:
    """Inline the iteration counts, and drop the calls that only name a slot that is read."""
    trips = find_trips(kernel)
    binds = ir.find_all(kernel, tirx.Bind, lambda x: x.var in trips)
    reads = ir.find_all(kernel, ir.Evaluate, lambda x: bool(find_calls(x, READ_SLOT)))
    kernel = ir.replace_nodes(kernel, ir.Stmt, {x: ir.seq() for x in (*binds, *reads)})
    return ir.drop_empty(ir.substitute(kernel, {bind.var: bind.value for bind in binds}))


def _behind_marks(body: ir.Stmt, first: ir.Stmt) -> ir.Stmt:
    """Put a statement before a kernel's work, after its constants and inside its marks."""
    *front, last = ir.statements(body)
    if front and isinstance(last, tirx.AttrStmt) and all(isinstance(x, tirx.Bind) for x in front):
        return ir.seq(front, _behind_marks(last, first))
    if isinstance(body, tirx.AttrStmt):
        inner = _behind_marks(body.body, first)
        return tirx.AttrStmt(body.node, body.attr_key, body.value, inner)
    return ir.seq(first, body)


def _lower_channels(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Lower the channels of one function."""

    def lower(kernel: Any) -> Any:
        if find_rings(kernel):
            kernel = rewrite_channels(kernel, find_channels(kernel))
        assert not find_rings(kernel), "LowerChannelsToMbarriers left a slot after"
        return kernel

    return map_bodies(func, lower)


LowerChannelsToMbarriers = function_pass("LowerChannelsToMbarriers", _lower_channels)
