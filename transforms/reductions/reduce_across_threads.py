"""Reduce a value across the threads of a row by shuffles and at most one barrier.

    reduce_scope(lambda a, b: a + b, [0]):                     256 threads a row, tx
        tvm_thread_allreduce(1, own[0], True, total[0], tx)
  ->
    total[0] = own[0]
    for each distance 16, 8, 4, 2, 1:
        total[0] = total[0] + shuffle_xor(total[0], distance)
    if tx % 32 == 0:
        of_warps[tx // 32] = total[0]
    syncthreads()
    taken[0:8] = of_warps[0:8]
    taken[0:4] = taken[0:4] + taken[4:8], and so on until total[0] = taken[0] + taken[1]

A butterfly leaves the result in every lane, and each warp adds up all warps by itself: stock
LowerThreadAllreduce lets one warp do it and has the others wait a second time for what it found.
Both lanes of a step have the same two operands, so all threads of a row get the same bits. Each
reduction has slot of its own in shared memory: none waits for the last. What other numbers of warps
than four and eight have left, and pairs, is loaded by a lane each, and combined by a second
butterfly.

Rows of 32 threads and less, a power of two, need no shared memory.

The only reduction of a row loop has two slots, used alternately. A warp that stores the next row's
value has passed this row's barrier after all warps, and a warp that still reads the last row's
value reads the other slot. Several reductions of a loop wait for one another's barriers.

Rows that a cluster shares are split over its blocks first (split_rows_across_cluster.py), and a
mean and the squares around it become one reduction (fuse_mean_and_variance.py).

Before: blocks are opaque, thread axes unified.  After: no tvm_thread_allreduce is left in kernels
that are bound by memory.  A kernel with a barrier is ours: stock ThreadSync puts one more between a
reduction and the next, whatever elements of shared memory they touch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import fences
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.programming_model import THREADS_PER_WARP as WARP
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.keys import ASYNC_COPY
from tvm_hopper.requests.targets import arch_of
from tvm_hopper.transforms.kernel_pass import function_pass, kernel_step

from .cluster_exchange import Exchange, plan_exchange
from .cluster_exchange_loop import LoopExchange
from .cluster_exchange_slots import give_rooms, in_turns
from .fuse_mean_and_variance import fuse_mean_and_variance
from .narrow_indices import narrow_indices
from .split_rows_across_cluster import AXIS, CLUSTER_AXIS, split_rows_across_cluster
from .warp_shuffles import (
    ThreadReduction,
    butterfly,
    check_order,
    gather,
    lanes_together,
    store,
    take_all,
    takes_all,
)

ALLREDUCE = "tirx.tvm_thread_allreduce"
THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
SHUFFLED = ("float32", "int32", "uint32", "int64")  # the last by two shuffles


def plan_reductions(kernel: ir.For, arch: Arch) -> tuple[ThreadReduction, ...]:
    """Find the reductions of a kernel; refuse those that shuffles do not make."""
    found = [
        _plan(kernel, scope, scope.body.value)
        for scope in ir.find_all(kernel, tirx.AttrStmt, lambda x: x.attr_key == "reduce_scope")
        if isinstance(scope.body, ir.Evaluate) and scope.body.value.op.name == ALLREDUCE
    ]
    loops = ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.SERIAL and _repeats(x))
    around = [[x for x in loops if ir.uses_node(x, one.scope)] for one in found]
    own = [x if one.num_partials > 1 else [] for one, x in zip(found, around, strict=True)]
    alone = [sum(x[-1:] == y[-1:] for y in own) == 1 for x in own]
    plan = give_rooms(kernel, [*map(in_turns, found, own, alone)], arch)
    # next to asynchronous copies InsertSyncs places what the threads need between their accesses
    has_barrier = not ir.find_blocks(kernel, ASYNC_COPY)
    return tuple(replace(x, has_barrier=has_barrier) for x in plan)


def _repeats(loop: ir.For) -> bool:
    return not ir.is_const(loop.extent, 1)


def _plan(kernel: ir.For, scope: tirx.AttrStmt, call: ir.Call) -> ThreadReduction:
    count = int(call.args[0])
    sources, condition = call.args[1 : 1 + count], call.args[1 + count]
    results, threads = call.args[2 + count : 2 + 2 * count], call.args[2 + 2 * count :]
    where = f"reduction to {results[0].source.name}"
    axis, together, rows = _axes_of_row(kernel, where, list(threads))
    if not ir.is_const(condition, 1):
        raise cannot_lower(
            where, f"the condition {condition}", "no condition: all threads take part"
        )
    for source in sources:
        if ir.dtype_of(source) not in SHUFFLED:
            fix = "reduce in float32: cast the input"
            raise cannot_lower(where, ir.dtype_of(source), "32 bits to shuffle", fix)
    if count > 1:
        check_order(where, scope.node)
    return ThreadReduction(scope, scope.node, tuple(sources), tuple(results), axis, rows, together)


def _axes_of_row(
    kernel: ir.For, where: str, threads: list[Any]
) -> tuple[ir.For, ir.For | None, int]:
    """Return a row's threads, the thread blocks that share it, and a block's number of rows."""
    axes = ir.thread_axes(kernel)
    axis = axes.get("threadIdx.x")
    together = axes.get(AXIS) if CLUSTER_AXIS in axes else None
    known = [x.loop_var for x in (together, axis) if x is not None]
    if axis is not None and ir.is_const(axis.extent, 1):  # TVM knows that its number is 0
        threads = [axis.loop_var if ir.is_const(x, 0) else x for x in threads]
    if axis is None or len(threads) != len(known) or not all(map(_is_among(known), threads)):
        names = ", ".join(map(str, threads))
        raise cannot_lower(where, f"threads {names}", "a row's threads along threadIdx.x")
    sizes = {tag: ir.static_int(axes[tag].extent) for tag in THREADS if tag in axes}
    size = sizes["threadIdx.x"]
    if None in sizes.values() or prod(x or 0 for x in sizes.values()) % WARP:
        raise cannot_lower(where, f"{sizes} threads", f"whole warps of {WARP} threads")
    if size is None or (size % WARP and (size > WARP or size & (size - 1))):
        need = f"a multiple of {WARP}, or a power of two below"
        raise cannot_lower(where, f"{size} threads of a row", need)
    if together is not None and size % WARP:
        found, need = f"{size} threads of a row", "whole warps where a cluster shares it"
        raise cannot_lower(where, found, need)
    return axis, together, prod(x or 1 for tag, x in sizes.items() if tag != "threadIdx.x")


def _is_among(variables: list[ir.Var]) -> Callable[[Any], bool]:
    return lambda x: any(x.same_as(y) for y in variables)


def rewrite_reductions(kernel: ir.For, plan: tuple[ThreadReduction, ...]) -> ir.For:
    """Put shuffles in the place of each reduction."""
    row = _row_number(kernel)
    names = ir.Names(var.name for var in ir.find_all(kernel, ir.Var))
    rooms, slots = _rooms(plan, names)
    far = plan_exchange(plan, names)
    taken = {}
    for one in [x for x in plan if far is None and takes_all(x)]:
        dtype, count = ir.dtype_of(one.results[0]), one.num_partials
        taken[one.scope] = ir.new_buffer(names.take("taken"), (count,), dtype, "local", 64)
    planned = {
        x.scope: _reduce(kernel, x, slots.get(x.scope, []), row, far, taken.get(x.scope))
        for x in plan
    }
    body = ir.replace_nodes(kernel, tirx.AttrStmt, planned)
    if isinstance(far, LoopExchange):
        body = far.end_turns(body)
    if far is None:
        return _allocate(body, [*rooms, *taken.values()], [])
    return _allocate(body, [*rooms, *far.barriers], far.start(kernel))


def _rooms(
    plan: tuple[ThreadReduction, ...], names: ir.Names
) -> tuple[list[ir.Var], dict[tirx.AttrStmt, list[tuple[ir.Var, Any]]]]:
    """Return the shared arrays for warps' partial results, and each reduction's places there."""
    values = [(one, i) for one in plan if one.num_partials > 1 for i in range(len(one.results))]
    rooms: dict[Any, ir.Var] = {}
    slots: dict[tirx.AttrStmt, list[tuple[ir.Var, Any]]] = {}
    for one, i in values:  # one array a type: of several, stock passes would let bytes be shared
        dtype = ir.dtype_of(one.results[i])
        same = [x for x in values if ir.dtype_of(x[0].results[x[1]]) == dtype]
        same = same if one.has_barrier else [(one, i)]  # InsertSyncs takes an array as a whole
        key = dtype if one.has_barrier else (dtype, one.scope, i)
        if key not in rooms:
            turns = max(x[0].num_rooms + x[0].own_rooms for x in same)
            width = max(max(x[0].num_partials, x[0].num_warps) for x in same)
            shape = (turns * len(same), one.rows, width)
            rooms[key] = ir.new_buffer(names.take("of_warps"), shape, dtype, "shared.dyn")
        number = next(n for n, x in enumerate(same) if x[0] is one and x[1] == i)
        slot = [number + len(same) * (one.turn + one.own_rooms)]
        slot += [number + len(same) * (one.trip % one.own_rooms)] if one.by_blocks else []
        slots.setdefault(one.scope, []).append((rooms[key], slot))
    return list(rooms.values()), slots


def _row_number(kernel: ir.For) -> Any:
    """Return which of the thread block's rows a thread works on."""
    axes, number = ir.thread_axes(kernel), 0
    for tag in ("threadIdx.z", "threadIdx.y"):
        if tag in axes:
            number = number * axes[tag].extent + axes[tag].loop_var
    return number


def _allocate(kernel: ir.For, buffers: list[ir.Var], start: list[Any]) -> ir.For:
    """Allocate shared memory in the outermost block of a kernel, and begin with something."""
    if not buffers:
        return kernel
    block = ir.find_all(kernel, ir.SBlock)[0]
    own = ir.mark_ours(ir.seq(*start, block.body))
    more = ir.with_block(block, body=own, alloc_buffers=[*block.alloc_buffers, *buffers])
    return ir.replace_nodes(kernel, ir.SBlock, {block: more})


def _reduce(
    kernel: ir.For,
    one: ThreadReduction,
    room: list[tuple[ir.Var, list[Any]]],
    row: Any,
    far: Exchange | LoopExchange | None,
    taken: ir.Var | None,
) -> ir.Stmt:
    tx = one.axis.loop_var
    stmts = [store(to, source) for to, source in zip(one.results, one.sources, strict=True)]
    stmts += butterfly(one, min(one.num_threads, WARP))
    if not room:
        return ir.seq(stmts)
    warp, lane = tx // WARP, tx % WARP
    places = [(buffer, [slot[0], row]) for buffer, slot in room]
    if far is None or one.by_blocks:
        own = [(buffer, [slot[-1], row]) for buffer, slot in room]
        partial = [
            ir.BufferStore(buffer, result, [*place, warp])
            for (buffer, place), result in zip(own, one.results, strict=True)
        ]
        stmts += [ir.IfThenElse(lane.equal(0), ir.seq(partial), None)]
        stmts += [fences.sync_threads()] if one.has_barrier else []
        if one.by_blocks:  # the warp that sends: others would only take its time to issue
            of_block = gather(one, own, lane, one.num_warps)
            of_block += butterfly(one, lanes_together(one.num_warps))
            stmts.append(ir.IfThenElse(warp.equal(0), ir.seq(of_block), None))
    if far is not None:
        stmts += far.send(kernel, one, places, warp, lane)
    if taken is not None:
        ((buffer, place),) = places
        return ir.seq([*stmts, *take_all(one, buffer, place, taken)])
    tell = far.tell(one) if isinstance(far, LoopExchange) else []
    stmts += [*gather(one, places, lane, one.num_partials), *tell]
    return ir.seq([*stmts, *butterfly(one, lanes_together(one.num_partials))])


reduce_across_threads = kernel_step(
    plan_reductions, rewrite_reductions, when=is_memory_bound, given=arch_of
)
# who reduces together, what is reduced together, and how
ReduceAcrossThreads = function_pass(
    "ReduceAcrossThreads",
    split_rows_across_cluster,
    fuse_mean_and_variance,
    narrow_indices,
    reduce_across_threads,
)
