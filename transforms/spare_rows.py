"""Rows of tiles that no load fills: where they lie beyond the tensor's end, and nobody uses them.

    if rows of the last tile < rows of a tile:
        ring[slot, panel, row, chunk] = 0      of the rows behind those, by all threads
        fence.proxy.async

What is multiplied with them is not stored; but shared memory that was never written has no value.
Later tiles may leave what they hold there.  Of extents that are symbolic a launch may have whole
tiles alone: then nothing is written.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import fences
from tvm_hopper.codegen_patches.vectors import PRINTED_LANES
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.keys import CHANNEL


def find_spare_rows(kernel: Any) -> list[tuple[ir.Var, tirx.Select]]:
    """Return the slots of loads that leave rows out, and how many rows a tile has, and the last."""
    found: list[tuple[ir.Var, tirx.Select]] = []
    for block in ir.find_blocks(kernel, CHANNEL):
        for region in block.writes:
            known = any(region.source.same_as(buffer) for buffer, _ in found)
            parts = [x.extent for x in region.region if isinstance(x.extent, tirx.Select)]
            # of a trip that a copy in bulk leaves out whole there is no last tile
            part = [x for x in parts if not ir.is_const(x.false_value, 0)]
            if part and not known:
                found.append((region.source, part[0]))
    return found


def clear_spare_rows(buffer: ir.Var, tail: Any, threads: ir.KernelThreads) -> ir.Stmt:
    """Write zeros to the rows of each slot that the last tile leaves out."""
    dtype = ir.dtype_of(buffer)
    columns = int(buffer.shape[-1])
    size = 1 if dtype == "bool" else PRINTED_LANES[dtype_bytes(dtype)]  # 16 bytes, 4 of bytes
    chunks = columns // size
    count = prod(int(x) for x in buffer.shape) // size
    num_threads = int(threads.count)

    def one(turn: Any) -> ir.Stmt:
        number = turn * num_threads + ir.as_int32(threads.var)
        place: list[Any] = []
        left = number
        for extent in (chunks, *(int(x) for x in list(buffer.shape)[-2:0:-1])):
            place.insert(0, tirx.floormod(left, extent))
            left = tirx.floordiv(left, extent)
        row, chunk = place[-2:]
        at = [left, *place[:-1], tirx.Ramp(chunk * size, 1, size) if size > 1 else chunk]
        zero = tirx.const(0, dtype)
        zeros = tirx.Broadcast(zero, size) if size > 1 else zero
        inside = row >= ir.as_int32(tail)
        if count % num_threads:
            inside = tirx.And(number < count, inside)
        return ir.IfThenElse(inside, tirx.BufferStore(buffer, zeros, at), None)

    return ir.make_loop("turn", -(-count // num_threads), one)


def start_spare_rows(kernel: Any, threads: ir.KernelThreads) -> list[ir.Stmt]:
    """Return what gives values to rows that are read, and that no load fills."""
    found = find_spare_rows(kernel)
    fence = ir.seq(fences.proxy_async())
    always: list[ir.Stmt] = []
    sometimes: list[ir.Stmt] = []
    for buffer, rows in found:
        clear = clear_spare_rows(buffer, rows.false_value, threads)
        is_left = ir.simplify(rows.false_value < rows.true_value)
        if ir.is_const(is_left, 1):
            always.append(clear)
        else:
            sometimes.append(ir.IfThenElse(is_left, ir.seq(clear, fence), None))
    return [*sometimes, *always, *([fence] if always else [])]
