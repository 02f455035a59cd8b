"""Load the rows of later iterations into shared memory by bulk copies.

    for r in serial(63, annotations={"tvm_hopper.stage_rows": 2}):
        for c in unroll(2):
            for v in vectorized(8):
                with sblock("load"):
                    where(r * 16 + bx < 1000)
                    tile[c, v] = X[r * 16 + bx, c * 1024 + tx * 8 + v]
        ...                                                  a barrier, after the loads
  ->
    if tx == 0: mbarrier.init(landed[0..3], 1); fence
    syncthreads()
    if tx == 0 and 0 * 16 + bx < 1000: expect landed[0]; cp.async.bulk(rows[0], &X[bx, 0])
    if tx == 0 and 1 * 16 + bx < 1000: expect landed[1]; cp.async.bulk(rows[1], &X[16 + bx, 0])
    for r in range(63):
        fence.proxy.async
        if tx == 0 and r + 2 < 63 and (r + 2) * 16 + bx < 1000:
            expect landed[(r + 2) % 4]; cp.async.bulk(rows[(r + 2) % 4], &X[(r + 2) * 16 + bx, 0])
        if r * 16 + bx < 1000: wait(landed[r % 4], r // 4 % 2)
        for c in unroll(2):
            for v in vectorized(8): tile[c, v] = rows[r % 4, c * 1024 + tx * 8 + v]
        ...

A row that waits takes no registers, and is there when its iteration comes. What a copy overwrites
was loaded two iterations before: each thread has told the async proxy since, and come to an
iteration's barrier.

Before: loads of rows are blocks that copy elements into registers.  After: no request for it is
left.
Not here: processors without bulk copies, which load as before.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import bulk, cache, fences, mbarrier
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.keys import LOAD_HINT, STAGE_ROWS
from tvm_hopper.requests.targets import processor_of
from tvm_hopper.transforms.mechanisms.bulk_emit import BULK

from .stage_rows_in_shared_plan import PART_AXIS, StagedLoop, plan_stages, requested

ALLREDUCE = "tirx.tvm_thread_allreduce"
ALIGNMENT = 128  # bytes of a slot


def rewrite_stages(kernel: ir.For, plan: tuple[StagedLoop, ...]) -> Any:
    """Copy the planned rows ahead, and load them from shared memory."""
    return ir.without_annotations(reduce(_stage, plan, kernel), STAGE_ROWS)


def _stage(kernel: ir.For, one: StagedLoop) -> ir.For:
    names = ir.Names(x.name for x in ir.find_all(kernel, ir.Var))
    axes = ir.thread_axes(kernel)
    part, parts = _part(axes)
    rooms = {
        x.tensor: ir.new_buffer(
            names.take(f"{x.tensor.name}_rows"),
            (one.rooms, parts * x.columns),
            ir.dtype_of(x.tensor),
            "shared.dyn",
            ALIGNMENT,
        )
        for x in one.tensors
    }
    size = parts * one.rooms
    landed = ir.new_buffer(names.take("landed"), (size,), "uint64", "shared.dyn", 8)
    policy = ir.new_buffer(names.take("policy"), (1,), "uint64", "local")
    told = tirx.BufferLoad(policy, [0]) if one.hint else None  # what L2 is to do with rows

    def arrival(room: Any) -> Any:
        return _at(landed, [ir.as_int32(tirx.convert(part * one.rooms + room))])

    threads = [axes[tag].loop_var for tag in ("threadIdx.x", "threadIdx.y") if tag in axes]
    first = [x.equal(0) for x in threads]

    def ask(turn: Any) -> ir.Stmt:
        room = ir.as_int32(ir.simplify(turn % one.rooms))
        there = arrival(room)
        stmts = [mbarrier.arrive_expect_tx(there, one.num_bytes)]
        for x in one.tensors:
            place = {one.loop.loop_var: turn}
            source = [ir.simplify(ir.substitute(i, place)) for i in x.first]
            target = _at(rooms[x.tensor], [room, ir.as_int32(tirx.convert(part * x.columns))])
            stmts.append(bulk.load(target, _at(x.tensor, source), x.num_bytes, there, told))
        exists = ir.simplify(ir.substitute(one.exists, {one.loop.loop_var: turn}))
        within = ir.simplify(turn < one.loop.extent)
        conditions = [*first, *(x for y in (within, exists) for x in ir.conjuncts(y))]
        conditions = [x for x in conditions if not ir.is_const(x, 1)]
        return ir.IfThenElse(ir.conjunction(conditions), ir.seq(*stmts), None)

    start: list[Any] = [mbarrier.init(arrival(n), 1) for n in range(one.rooms)]
    start = [
        ir.IfThenElse(ir.conjunction(first), ir.seq(*start, mbarrier.fence_init()), None),
        fences.sync_threads(),
        *(ask(tirx.IntImm(ir.dtype_of(one.loop.loop_var), n)) for n in range(one.ahead)),
    ]
    kernel = ir.replace_nodes(kernel, ir.For, {one.loop: _turns(one, rooms, arrival, ask, axes)})
    block = ir.find_all(kernel, ir.SBlock)[0]
    body = ir.mark_ours(ir.seq(*start, block.body))
    buffers = [*block.alloc_buffers, *rooms.values(), landed]
    if told is not None:
        body = ir.seq(cache.create_policy(told, one.hint), body)
        buffers.append(policy)
    return ir.replace_nodes(
        kernel, ir.SBlock, {block: ir.with_block(block, body=body, alloc_buffers=buffers)}
    )


def _turns(
    one: StagedLoop, rooms: dict[ir.Var, ir.Var], arrival: Any, ask: Any, axes: dict[str, ir.For]
) -> ir.For:
    """Return the loop, which requests a later row, waits for its own, and loads that."""
    turn, (part, _) = one.loop.loop_var, _part(axes)
    room = ir.as_int32(turn % one.rooms)
    parity = ir.as_int32(turn // one.rooms % 2)
    wait = ir.seq(mbarrier.wait(arrival(room), parity))
    if not ir.is_const(one.exists, 1):
        wait = ir.IfThenElse(one.exists, wait, None)

    def from_room(block: ir.SBlock) -> ir.SBlock:
        store = block.body
        for x in one.tensors:
            if any(store.same_as(y) for y in x.loads):
                column = ir.as_int32(ir.simplify(store.value.indices[-1] - x.first[-1]))
                column = column + part * x.columns
                value = tirx.BufferLoad(rooms[x.tensor], [room, column])
                store = ir.BufferStore(store.buffer, value, list(store.indices))
                notes = {k: v for k, v in block.annotations.items() if k != LOAD_HINT}
                return ir.with_block(block, body=store, reads=[], writes=[], annotations=notes)
        return block

    body = [ir.seq(fences.proxy_async()), ask(turn + one.ahead), wait]
    body.append(ir.replace(one.loop.body, ir.SBlock, from_room))
    count = int(axes["threadIdx.x"].extent)
    if count <= THREADS_PER_WARP or not _has_barrier(one.loop):
        body.append(ir.seq(fences.sync_threads(count)))
    return ir.with_body(one.loop, ir.seq(*body))


def _part(axes: dict[str, ir.For]) -> tuple[Any, int]:
    """Return which part of a row, and of the arrays, a thread block has, and of how many."""
    if PART_AXIS not in axes:
        return 0, 1
    return ir.as_int32(axes[PART_AXIS].loop_var), int(axes[PART_AXIS].extent)


def _has_barrier(loop: ir.For) -> bool:
    """Tell whether a loop has a barrier: a reduction across several warps."""
    return bool(ir.find_all(loop, ir.Call, lambda x: x.op.name == ALLREDUCE))


def _at(buffer: ir.Var, indices: list[Any]) -> Any:
    return tirx.address_of(tirx.BufferLoad(buffer, indices))


def stage_rows_in_shared(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Stage the rows of one function's memory-bound kernels."""
    is_there = BULK.loads_on(processor_of(func))

    def stage(kernel: ir.For) -> Any:
        if not is_memory_bound(kernel) or not requested(kernel):
            return kernel
        after = rewrite_stages(kernel, plan_stages(kernel) if is_there else ())
        assert not requested(after), "stage_rows_in_shared left a request"
        return after

    return ir.map_kernels(func, stage)
