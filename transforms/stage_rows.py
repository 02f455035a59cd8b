"""Bring the rows of later turns of a loop into shared memory while this turn's are computed with.

    for r in serial(63, annotations={"tvm_hopper.stage_rows": 2}):
        for c in unroll(2):
            for v in vectorized(8):
                with sblock("load"):
                    where(r * 16 + bx < 1000)
                    tile[c, v] = X[r * 16 + bx, c * 1024 + tx * 8 + v]
        ...                                                  a barrier, behind the loads
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

A row that waits in shared memory takes no registers, and is there at once when its turn comes. What
a copy overwrites was loaded two turns before: each thread has told the async proxy since, and come
to the barrier of the turn between.

Before: loads of rows are blocks that copy elements into registers.  After: no request for it is
left.
Not here: processors without bulk copies, which load as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import bulk, fences, mbarrier
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.keys import STAGE_ROWS
from tvm_hopper.requests.targets import processor_of

from .prefetch_rows import loaded_element
from .spread_rows import PART_AXIS

ALLREDUCE = "tirx.tvm_thread_allreduce"
ALIGNMENT = 128  # bytes of a room
_BULK_BYTES = 16  # of which addresses and sizes are multiples


@dataclass(frozen=True)
class StagedTensor:
    """A tensor of which a loop loads a row a turn."""

    tensor: ir.Var
    first: tuple[Any, ...]  # index of the first element of a thread block's part of a row
    columns: int  # of that part
    loads: tuple[ir.BufferStore, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the part of a row."""
        return self.columns * dtype_bytes(ir.dtype_of(self.tensor))


@dataclass(frozen=True)
class StagedLoop:
    """A loop over rows, when its rows exist, and by how many turns they are asked for ahead."""

    loop: ir.For
    exists: Any
    ahead: int
    tensors: tuple[StagedTensor, ...]

    @property
    def rooms(self) -> int:
        """Rows that wait, the one that is computed with, and the one before."""
        return self.ahead + 2

    @property
    def num_bytes(self) -> int:
        """Bytes of a turn."""
        return sum(x.num_bytes for x in self.tensors)


def plan_stages(kernel: ir.For) -> tuple[StagedLoop, ...]:
    """Find the loops with a request, and the rows that they load."""
    return tuple(_plan(kernel, loop) for loop in _requested(kernel))


def _requested(kernel: ir.For) -> list[ir.For]:
    return ir.find_all(kernel, ir.For, lambda x: STAGE_ROWS in x.annotations)


def _plan(kernel: ir.For, loop: ir.For) -> StagedLoop:
    axes = ir.thread_axes(kernel)
    part = axes.get(PART_AXIS)
    inside = [x.loop_var for x in ir.find_all(loop.body, ir.For)]
    threads = [x.loop_var for tag, x in axes.items() if tag in ("threadIdx.x", "threadIdx.y")]
    zero = dict.fromkeys([*inside, *threads], 0)
    found: dict[ir.Var, StagedTensor] = {}
    conditions = []
    for realize in ir.find_all(loop.body, ir.SBlockRealize):
        load = loaded_element(realize.block.body)
        if load is None or not ir.depends_on(list(load.indices), [loop.loop_var]):
            continue
        first = [ir.simplify(ir.substitute(x, zero)) for x in load.indices]
        columns = _columns(load.source, first[-1], part)
        known = found.get(load.source)
        loads = (*(known.loads if known is not None else ()), realize.block.body)
        found[load.source] = StagedTensor(load.source, tuple(first), columns, loads)
        conditions.append(ir.simplify(ir.substitute(realize.predicate, zero)))
    alike = all(tvm_ffi.structural_equal(x, conditions[0]) for x in conditions)
    rows = axes.get("threadIdx.y")
    if not found or not alike or (rows is not None and not ir.is_const(rows.extent, 1)):
        raise cannot_lower(
            f"loop {loop.loop_var.name}, {STAGE_ROWS}",
            "no rows of a thread block, one a turn",
            "loads of whole rows into registers, under one condition",
            "leave the request out",
        )
    return StagedLoop(loop, conditions[0], int(loop.annotations[STAGE_ROWS]), tuple(found.values()))


def _columns(tensor: ir.Var, first: Any, part: ir.For | None) -> int:
    """Return the columns of a thread block's part of a row; refuse what no bulk copy brings."""
    columns, count = ir.static_int(tensor.shape[-1]), 1 if part is None else int(part.extent)
    begin = 0 if part is None or not columns else part.loop_var * (columns // count)
    size = (columns or 0) // count * dtype_bytes(ir.dtype_of(tensor))
    whole = columns is not None and columns % count == 0 and size % _BULK_BYTES == 0
    if not whole or tensor.ty.strides or not ir.is_zero(ir.simplify(first - begin)):
        raise cannot_lower(
            f"tensor {tensor.name}, {STAGE_ROWS}",
            f"rows of {tensor.shape[-1]} elements for {count} thread blocks",
            f"contiguous parts, each of a multiple of {_BULK_BYTES} bytes",
            "leave the request out",
        )
    return (columns or 0) // count


def rewrite_stages(kernel: ir.For, plan: tuple[StagedLoop, ...]) -> Any:
    """Copy the planned rows ahead, and load them from shared memory."""
    for one in plan:
        kernel = _stage(kernel, one)
    return kernel


def _stage(kernel: ir.For, one: StagedLoop) -> ir.For:
    names = ir.Names(x.name for x in ir.find_all(kernel, ir.Var))
    rooms = {
        x.tensor: ir.new_buffer(
            names.take(f"{x.tensor.name}_rows"),
            (one.rooms, x.columns),
            ir.dtype_of(x.tensor),
            "shared.dyn",
            ALIGNMENT,
        )
        for x in one.tensors
    }
    landed = ir.new_buffer(names.take("landed"), (one.rooms,), "uint64", "shared.dyn", 8)
    axes = ir.thread_axes(kernel)
    threads = [axes[tag].loop_var for tag in ("threadIdx.x", "threadIdx.y") if tag in axes]
    first = [x.equal(0) for x in threads]

    def ask(turn: Any) -> ir.Stmt:
        room = ir.as_int32(ir.simplify(turn % one.rooms))
        there = _at(landed, [room])
        stmts = [mbarrier.arrive_expect_tx(there, one.num_bytes)]
        for x in one.tensors:
            place = {one.loop.loop_var: turn}
            source = [ir.simplify(ir.substitute(i, place)) for i in x.first]
            target = _at(rooms[x.tensor], [room, tirx.IntImm("int32", 0)])
            stmts.append(bulk.load(target, _at(x.tensor, source), x.num_bytes, there))
        exists = ir.simplify(ir.substitute(one.exists, {one.loop.loop_var: turn}))
        within = ir.simplify(turn < one.loop.extent)
        conditions = [*first, *(x for y in (within, exists) for x in ir.conjuncts(y))]
        conditions = [x for x in conditions if not ir.is_const(x, 1)]
        return ir.IfThenElse(ir.conjunction(conditions), ir.seq(*stmts), None)

    start: list[Any] = [
        mbarrier.init(_at(landed, [tirx.IntImm("int32", n)]), 1) for n in range(one.rooms)
    ]
    start = [
        ir.IfThenElse(ir.conjunction(first), ir.seq(*start, mbarrier.fence_init()), None),
        fences.sync_threads(),
        *(ask(tirx.IntImm(ir.dtype_of(one.loop.loop_var), n)) for n in range(one.ahead)),
    ]
    kernel = ir.replace_nodes(kernel, ir.For, {one.loop: _turns(one, rooms, landed, ask, axes)})
    block = ir.find_all(kernel, ir.SBlock)[0]
    body = ir.mark_ours(ir.seq(*start, block.body))
    buffers = [*block.alloc_buffers, *rooms.values(), landed]
    return ir.replace_nodes(
        kernel, ir.SBlock, {block: ir.with_block(block, body=body, alloc_buffers=buffers)}
    )


def _turns(
    one: StagedLoop, rooms: dict[ir.Var, ir.Var], landed: ir.Var, ask: Any, axes: dict[str, ir.For]
) -> ir.For:
    """Return the loop, which asks for a later row, waits for its own, and loads that."""
    turn = one.loop.loop_var
    room = ir.as_int32(turn % one.rooms)
    parity = ir.as_int32(turn // one.rooms % 2)
    wait = ir.seq(mbarrier.wait(_at(landed, [room]), parity))
    if not ir.is_const(one.exists, 1):
        wait = ir.IfThenElse(one.exists, wait, None)

    def from_room(block: ir.SBlock) -> ir.SBlock:
        store = block.body
        for x in one.tensors:
            if any(store.same_as(y) for y in x.loads):
                column = ir.as_int32(ir.simplify(store.value.indices[-1] - x.first[-1]))
                value = tirx.BufferLoad(rooms[x.tensor], [room, column])
                store = ir.BufferStore(store.buffer, value, list(store.indices))
                return ir.with_block(block, body=store, reads=[], writes=[])
        return block

    body = [ir.seq(fences.proxy_async()), ask(turn + one.ahead), wait]
    body.append(ir.replace(one.loop.body, ir.SBlock, from_room))
    count = int(axes["threadIdx.x"].extent)
    if count <= THREADS_PER_WARP or not _has_barrier(one.loop):
        body.append(ir.seq(fences.sync_threads(count)))
    rest = {k: v for k, v in one.loop.annotations.items() if k != STAGE_ROWS}
    return ir.with_body(one.loop, ir.seq(*body), annotations=rest)


def _has_barrier(loop: ir.For) -> bool:
    """Tell whether threads of several warps reduce something in a loop: they meet there."""
    return bool(ir.find_all(loop, ir.Call, lambda x: x.op.name == ALLREDUCE))


def _at(buffer: ir.Var, indices: list[Any]) -> Any:
    return tirx.address_of(tirx.BufferLoad(buffer, indices))


@prim_func_pass(opt_level=0, name="tvm_hopper.StageRows")
class StageRows:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Stage the rows of one function's memory-bound kernels."""
        is_there = "bulk" in processor_of(func).mechanisms(is_load=True)

        def stage(kernel: ir.For) -> Any:
            if not is_memory_bound(kernel) or not _requested(kernel):
                return kernel
            after = rewrite_stages(kernel, plan_stages(kernel)) if is_there else _plain(kernel)
            assert not _requested(after), "StageRows left a request"
            return after

        return ir.map_kernels(func, stage)


def _plain(kernel: ir.For) -> ir.For:
    """Take the requests away."""
    planned = {}
    for loop in _requested(kernel):
        rest = {k: v for k, v in loop.annotations.items() if k != STAGE_ROWS}
        planned[loop] = ir.with_body(loop, loop.body, annotations=rest)
    return ir.replace_nodes(kernel, ir.For, planned)
