"""TMA multicast: thread blocks of a cluster load shared tiles once.

    for bx in thread_binding(8, "blockIdx.x", annotations={"tvm_hopper.share_loads": 1}):
      for rank in thread_binding(2, "blockIdx.z"):
        for t in thread_binding(384, "threadIdx.x"):
            if t < 128:
                if t == 0:
                    for k in range(8):
                        trip = k
                        await_free(0, trip)
                        with sblock(channel=0):
                            fill_slot(0, trip)
                            tma_load(&A[trip % 4, 0, 0], A_map, k * 64, (2 * by + rank) * 128)
                            for part in range(2):
                                tma_load(&B[trip % 4, part * 32, 0], B_map, k * 64, bx * 64 + ...)
            else:
                ...
                with sblock(release=0, arrivals=2): if t % 128 == 0: free_slot(0, trip)
                C[...] = acc
  ->
    for _ in thread_binding(2, "clusterCtaIdx.z"):          a cluster of 1 x 1 x 2 blocks
    for rank in thread_binding(2, "blockIdx.z"):
                            ...
                            tma_multicast(&B[trip % 4, rank * 32, 0], B_map, 0b11, ...)
            else:
                ...
                with sblock(release=0, arrivals=4):
                    if t % 128 == 0:
                        free_slot(0, trip, 0)
                        free_slot(0, trip, 1)               at the barrier of each block
                C[...] = acc
                cluster barrier                             until nothing arrives here any more

A box of B lands in both blocks, on the barriers of both: each expects all of its slot, whoever
loads it. A slot is free once the consumers of every block that its loads go to have released it.

Blocks that share sums, too, have met after their loads already, and do not once more.

Before: one producer and its consumers hand slots over (SpecializeWarps), and boxes fall into as
many as there are blocks (LowerAsyncCopies); every block loads for itself, which is right, too.
After: no `share_loads` is left. Not here: the barriers, and the blocks' meeting before the
first load (lower_channels_to_mbarriers.py).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import cluster
from tvm_hopper.facts.op_names import CLUSTER_BARRIERS, is_op
from tvm_hopper.requests.fallbacks import Fallback, report
from tvm_hopper.requests.keys import FREE_SLOT, MULTICAST, RELEASE, SHARE_LOADS, WITH_HINT
from tvm_hopper.requests.targets import arch_of
from tvm_hopper.transforms.common.channel import (
    find_calls,
    find_channels,
    find_split,
    make_call,
    parse_call,
)
from tvm_hopper.transforms.common.explain_notes import ArrivalsNote, FallbackNote, Note, RemarkNote
from tvm_hopper.transforms.common.multicast_groups import (
    BITS,
    SharedBoxes,
    SharedLoads,
    plan_shared_loads,
)
from tvm_hopper.transforms.kernel_pass import function_pass, map_noted

CLUSTER_AXIS = "clusterCtaIdx.z"


def rewrite_shared_loads(kernel: ir.For, plan: SharedLoads) -> ir.For:
    """Share out the boxes, tell all blocks of free slots, and let them leave together."""
    rank, num_blocks = plan.axis.loop_var, plan.num_blocks
    planned = {boxes.nest: share_out(boxes, rank) for boxes in plan.boxes}
    kernel = ir.replace_nodes(kernel, ir.Stmt, planned)

    def release(block: ir.SBlock, mutator: Any) -> ir.SBlock:
        block = mutator.default_mutate(block)
        if RELEASE not in block.annotations:
            return block
        calls = find_calls(block, FREE_SLOT)  # one for each block that gets an arrival
        late, arrivals = map(int, block.annotations[RELEASE])
        notes = {**block.annotations, RELEASE: [late, arrivals * len(calls)]}
        return ir.with_block(block, annotations=notes)

    def free(stmt: ir.Evaluate, mutator: Any) -> ir.Stmt:
        call = parse_call(stmt.value)
        if call is None or call.name != FREE_SLOT:
            return mutator.default_mutate(stmt)
        columns = zip(*plan.peers(call.channel), strict=True)  # the first peer of each block ...
        peers = [_of_block(column, rank, "uint32", 4) for column in columns]
        told = [make_call(FREE_SLOT, call.channel, call.trip, peer) for peer in peers]
        return ir.seq(told or stmt)

    kernel = ir.mutate(kernel, [(ir.SBlock, release), (ir.Evaluate, free)])
    split = find_split(kernel)
    assert split is not None, "the plan found a producer"
    if not ir.find_all(split.else_case, ir.Call, lambda x: is_op(x, CLUSTER_BARRIERS)):
        consumer = ir.seq(split.else_case, cluster.arrive(), cluster.wait())
        left = ir.IfThenElse(split.condition, split.then_case, consumer)
        kernel = ir.replace_nodes(kernel, ir.IfThenElse, {split: left})
    (axis,) = [x for x in ir.thread_axes(kernel).values() if SHARE_LOADS in x.annotations]
    notes = {k: v for k, v in axis.annotations.items() if k != SHARE_LOADS}
    kernel = ir.replace_nodes(
        kernel, ir.For, {axis: ir.with_body(axis, axis.body, annotations=notes)}
    )
    binding = tirx.IterVar(
        None, ir.Var(CLUSTER_AXIS, "int32"), tirx.IterVar.ThreadIndex, CLUSTER_AXIS
    )
    extent = tirx.IntImm("int32", num_blocks)
    of_cluster = ir.Var("rank", "int32")
    return ir.For(of_cluster, 0, extent, ir.ForKind.THREAD_BINDING, kernel, binding)


def share_out(boxes: SharedBoxes, rank: ir.Var) -> ir.Stmt:
    """Build the loads of one block: its share of the boxes, each for all that need it."""
    sharing = boxes.sharing
    count = boxes.num_boxes // sharing.count
    place = _of_block(sharing.places, rank, "int32", 4)
    mask = _of_block(sharing.masks, rank, "uint16", BITS)

    def one(i: Any) -> ir.Stmt:
        left, values = ir.simplify(place * count + i), {}
        for loop in reversed(boxes.loops):
            values[loop.loop_var] = ir.cast_like(
                ir.simplify(loop.min + tirx.floormod(left, int(loop.extent))), loop.loop_var
            )
            left = tirx.floordiv(left, int(loop.extent))
        name, *args = ir.substitute(boxes.call, values).args
        tile, tensor_map, *coordinates = args
        load, *hint = str(name.value).partition(WITH_HINT)
        shared = "".join((MULTICAST[load], *hint))
        plain = [ir.simplify(x) for x in coordinates]
        return tirx.Evaluate(tirx.call_extern("int32", shared, tile, tensor_map, mask, *plain))

    return ir.make_loop("box", count, one)


def _of_block(values: tuple[int, ...], rank: ir.Var, dtype: str, bits: int) -> Any:
    """Return what a table says of a block: one value, its number, or a few bits of a word."""
    if len(set(values)) == 1:
        return tirx.IntImm(dtype, values[0])
    if values == tuple(range(len(values))):
        return ir.cast_like(rank, tirx.IntImm(dtype, 0))
    word = tirx.IntImm("uint64", sum(value << (bits * i) for i, value in enumerate(values)))
    moved = word >> tirx.Cast("uint64", rank * bits)
    return tirx.Cast(dtype, moved & tirx.IntImm("uint64", (1 << bits) - 1))


def _facts(plan: SharedLoads) -> list[Note]:
    """Return what `explain` says of shared loads."""
    return [
        RemarkNote(f"{x.tile}: loaded once for {x.sharing.count} blocks of a cluster")
        for x in plan.boxes
    ]


def _find_fallbacks(plan: SharedLoads) -> list[Fallback]:
    """Tell of tiles that blocks could share, but for their boxes."""
    return [
        Fallback(
            f"tile {x.tile}",
            f"{x.sharing.count} blocks of a cluster that load all of it each",
            f"{x.sharing.count} boxes or a multiple; it has {x.num_boxes}",
        )
        for x in plan.own
    ]


def _share_loads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Share the loads of one function's kernels."""
    arch = arch_of(func)

    def change(kernel: ir.For, notes: list[Note]) -> ir.For:
        plan = plan_shared_loads(kernel, arch)
        if plan is None:
            return kernel
        slow = report(func, _find_fallbacks(plan))
        kernel = rewrite_shared_loads(kernel, plan)
        told = [
            ArrivalsNote(x.number, x.full_count, x.empty_count)
            for x in find_channels(kernel)
            if plan.peers(x.number)
        ]
        notes += [*told, *_facts(plan), *map(FallbackNote, slow)]
        assert plan_shared_loads(kernel, arch) is None, "MulticastLoads left a loop after"
        return kernel

    return map_noted(func, change)


MulticastLoads = function_pass("MulticastLoads", _share_loads)
