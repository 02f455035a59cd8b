"""Emit copies by `cp.async`: chunks, and the thread that copies each of them.

    for chunk in serial(48, annotations={"shared_out": 1}):
        cp_async(&tile[chunk // 8, chunk % 8 * 8], &A[...], 16, 16)
  ->
    for turn in range(2):                                                         32 threads
        if t + turn * 32 < 48:
            cp.async(&tile[t // 8 + turn * 4, t % 8 * 8], &A[...], 16)

Which threads copy is known late: all threads of a kernel, or its producer's.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import cp_async
from tvm_hopper.requests import keys
from tvm_hopper.requests.keys import ASYNC_OP, FILL_SLOT, SHARED_OUT, SWIZZLE
from tvm_hopper.transforms.common.channel import parse_call
from tvm_hopper.transforms.common.shared_layout import layout_of, panels

from .cp_async_plan import CHUNK_BYTES, CpAsyncTransfer, plan_cp_async_copies
from .mechanism import CopyMechanism, each


def chunk_block(transfer: CpAsyncTransfer) -> ir.SBlockRealize:
    """Build the block that makes the chunks of a tile, to be distributed between threads."""
    copy = transfer.copy
    number = ir.Var("chunk", "int32")
    zero, count = (tirx.IntImm("int32", x) for x in (0, transfer.num_chunks))
    body = ir.seq(_chunk(transfer, number))
    return ir.opaque_block(
        copy.block.name_hint,
        ir.For(number, zero, count, ir.ForKind.SERIAL, body, annotations={SHARED_OUT: 1}),
        reads=[ir.full_region(copy.src.buffer)],
        writes=[ir.full_region(copy.dst.buffer)],
        annotations={ASYNC_OP: copy.op.name},
    )


def share_out(
    copies: ir.Stmt, thread: Any, num_threads: int, most_unrolled: int | None = None
) -> ir.Stmt:
    """Let each thread make some chunks: those of its number, and of every `num_threads`-th one.

    The CUDA compiler may unroll `most_unrolled` of its iterations; None: its choice.
    """

    def deal(loop: ir.For) -> ir.Stmt:
        if SHARED_OUT not in loop.annotations:
            return loop
        num_chunks = int(loop.extent)

        def one(turn: Any) -> ir.Stmt:
            number = ir.as_int32(thread) + turn * num_threads
            stmt = _simplified(ir.substitute(loop.body, {loop.loop_var: number}))
            if num_chunks % num_threads == 0:
                return stmt
            return ir.IfThenElse(ir.simplify(number < num_chunks), stmt, None)

        turns = ir.make_loop("turn", -(-num_chunks // num_threads), one)
        if most_unrolled is None or not isinstance(turns, ir.For):
            return turns
        if int(turns.extent) <= most_unrolled:
            return turns
        return ir.with_body(turns, turns.body, annotations={"pragma_unroll": most_unrolled})

    return ir.replace(copies, ir.For, deal)


def _simplified(chunk: ir.Stmt) -> ir.Stmt:
    """Simplify where a chunk lies, and how much of it is read."""

    def load(node: ir.TensorLoad) -> ir.TensorLoad:
        return tirx.BufferLoad(node.source, [ir.simplify(x) for x in node.indices])

    def valid(call: ir.Call) -> ir.Call:
        if call.op.name != "tirx.call_extern":
            return call
        *others, source_bytes = call.args
        return tirx.call_extern("int32", *others, _simplified_bytes(source_bytes))

    return ir.replace(ir.replace(chunk, ir.TensorLoad, load), ir.Call, valid)


def _simplified_bytes(count: Any) -> Any:
    if isinstance(count, tirx.Select):
        return tirx.Select(ir.simplify(count.condition), count.true_value, count.false_value)
    return ir.simplify(count)


def _chunk(transfer: CpAsyncTransfer, number: Any) -> Any:
    """Build the copy of the chunk of a number."""
    copy = transfer.copy
    values: dict[ir.Var, Any] = {
        loop.loop_var: ir.cast_like(0, loop.loop_var) for loop in copy.loops
    }
    rest = number
    for loop in reversed(transfer.loops):
        is_row = loop.same_as(transfer.loops[-1])
        extent = int(loop.extent) // (transfer.width if is_row else 1)
        at = rest if loop.same_as(transfer.loops[0]) else rest % extent
        rest = rest // extent
        value = at * transfer.width if is_row else at
        values[loop.loop_var] = ir.cast_like(ir.simplify(value), loop.loop_var)
    tile, tensor = (
        [ir.simplify(ir.substitute(index, values)) for index in end.indices]
        for end in (copy.tile, copy.tensor)
    )
    if int(copy.block.annotations.get(SWIZZLE, 0)):
        tile = list(layout_of(copy).swizzled(*tile))
    valid = transfer.valid
    if not isinstance(valid, int):
        valid = ir.substitute(valid, values)
        tensor = [_readable(x, valid, number) for x in tensor]
    return tirx.call_extern(
        "int32",
        keys.CP_ASYNC,
        tirx.address_of(tirx.BufferLoad(copy.tile.buffer, tile)),
        tirx.address_of(tirx.BufferLoad(copy.tensor.buffer, tensor)),
        transfer.num_bytes,
        _in_bytes(valid, transfer.copy.tile.element_bytes),
    )


def _readable(index: Any, valid: Any, number: ir.Var) -> Any:
    """Read where a tensor names a chunk's row the first of its elements for chunks that are empty.

    The address of a copy of no bytes is computed, too.
    """
    is_needed = valid.condition if isinstance(valid, tirx.Select) else valid > 0

    def load(node: ir.TensorLoad, _: Any) -> Any:
        if not ir.depends_on(list(node.indices), [number]):
            return node
        places = [tirx.Select(is_needed, x, ir.cast_like(0, x)) for x in node.indices]
        return tirx.BufferLoad(node.source, places)

    return ir.mutate(index, [(ir.TensorLoad, load)])


def _in_bytes(count: Any, size: int) -> Any:
    if isinstance(count, tirx.Select):  # whole or not at all is what most chunks are
        whole, none = (ir.simplify(x * size) for x in (count.true_value, count.false_value))
        return tirx.Select(ir.simplify(count.condition), whole, none)
    return count * size if isinstance(count, int) else ir.simplify(count * size)


def emit_chunks(copies: ir.Stmt) -> ir.Stmt:
    """Turn the calls of loads that threads make, each its part, into instructions."""
    return ir.drop_empty(ir.replace(copies, ir.Evaluate, _instruction))


def _instruction(stmt: ir.Evaluate) -> ir.Stmt:
    """Put an instruction in place of a `cp_async` call; nothing in place of what names a slot."""
    call = parse_call(stmt.value)
    if call is not None and call.name == FILL_SLOT:
        return ir.seq()
    if not isinstance(stmt.value, ir.Call) or stmt.value.op.name != "tirx.call_extern":
        return stmt
    match str(stmt.value.args[0].value), list(stmt.value.args[1:]):
        case keys.CP_ASYNC, [address, tensor, num_bytes, source_bytes]:
            whole = ir.is_const(source_bytes, int(num_bytes))
            source = None if whole else source_bytes
            return ir.seq(cp_async.copy(address, tensor, int(num_bytes), source))
    return stmt


CP_ASYNC = CopyMechanism(
    "cp_async",
    plan_cp_async_copies,
    each(chunk_block),
    lambda copy: panels(copy, "chunks", "cp.async"),
    row_units=CHUNK_BYTES,
    title="cp.async",
)
