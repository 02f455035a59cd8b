"""Copies by `cp.async`: each thread makes its part of a tile, chunk by chunk."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import cp_async
from tvm_hopper.plan.channel import parse_call
from tvm_hopper.plan.cp_async_plan import CpAsyncTransfer
from tvm_hopper.plan.shared_layout import layout_of
from tvm_hopper.requests.keys import ASYNC_OP, CP_ASYNC, FILL_SLOT, SWIZZLE


def chunk_block(transfer: CpAsyncTransfer) -> ir.SBlockRealize:
    """Build the block in which the threads share out the chunks of a tile."""
    copy, thread = transfer.copy, transfer.thread
    num_threads, num_chunks = int(thread.extent), transfer.num_chunks

    def one(turn: Any) -> ir.Stmt:
        number = ir.as_int32(thread.loop_var) + turn * num_threads
        stmt = ir.seq(_chunk(transfer, number))
        if num_chunks % num_threads == 0:
            return stmt
        return ir.IfThenElse(ir.simplify(number < num_chunks), stmt, None)

    return ir.opaque_block(
        copy.block.name_hint,
        ir.make_loop("turn", -(-num_chunks // num_threads), one),
        reads=[ir.full_region(copy.src.buffer)],
        writes=[ir.full_region(copy.dst.buffer)],
        annotations={ASYNC_OP: copy.op.name},
    )


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
    return tirx.call_extern(
        "int32",
        CP_ASYNC,
        tirx.address_of(tirx.BufferLoad(copy.tile.buffer, tile)),
        tirx.address_of(tirx.BufferLoad(copy.tensor.buffer, tensor)),
        transfer.num_bytes,
        _in_bytes(valid, transfer.copy.tile.element_bytes),
    )


def _in_bytes(count: Any, size: int) -> Any:
    if isinstance(count, tirx.Select):  # whole or not at all is what most chunks are
        whole, none = (ir.simplify(x * size) for x in (count.true_value, count.false_value))
        return tirx.Select(ir.simplify(count.condition), whole, none)
    return count * size if isinstance(count, int) else ir.simplify(count * size)


def emit_groups(copies: ir.Stmt) -> ir.Stmt:
    """Turn the calls of loads that complete in groups, and have no barrier, into instructions."""
    return ir.drop_empty(ir.replace(copies, ir.Evaluate, _instruction))


def _instruction(stmt: ir.Evaluate) -> ir.Stmt:
    """Put an instruction in place of a `cp_async` call; nothing in place of what names a slot."""
    call = parse_call(stmt.value)
    if call is not None and call.name == FILL_SLOT:
        return ir.seq()
    if not isinstance(stmt.value, ir.Call) or stmt.value.op.name != "tirx.call_extern":
        return stmt
    match str(stmt.value.args[0].value), list(stmt.value.args[1:]):
        case name, [address, tensor, num_bytes, source_bytes] if name == CP_ASYNC:
            whole = ir.is_const(source_bytes, int(num_bytes))
            source = None if whole else source_bytes
            return ir.seq(cp_async.copy(address, tensor, int(num_bytes), source))
    return stmt
