"""Handle tile rows beyond the tensor's end, which no load fills.

    if t < 128: load ..
    else:                                               t := t - 128
        if the block's tile crosses the end:
            ring[slot, panel, row, chunk] = 0           of the rows behind the end, by consumers
            fence.proxy.async
            bar.sync 7, consumers
        ...

Their products are not stored, but shared memory that was never written has no value.
Consumers write it while the first loads are under way: those of 62 of 64 rows in eight slots are
127 KB, which took 0.3 us of 5 before them.

Of several tiles a block, an earlier one may fill these rows.  Then all threads write them before
anything is loaded, and later tiles leave there what they hold; of symbolic extents a launch may
have whole tiles alone, and nothing is written.  So do kernels without a producer.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import fences
from tvm_hopper.codegen_patches.vectors import PRINTED_LANES
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.op_names import SETMAXNREG, is_op
from tvm_hopper.requests.keys import CHANNEL

ZERO_FILL_BARRIER = 7  # a named barrier; role_syncs has the numbers below 4


def find_spare_rows(kernel: Any) -> list[tuple[ir.Var, tirx.Select]]:
    """Return the slots of loads that leave rows out, and how many rows a tile has, and the last."""
    found: list[tuple[ir.Var, tirx.Select]] = []
    for block in ir.find_blocks(kernel, CHANNEL):
        for region in block.writes:
            known = any(region.source.same_as(buffer) for buffer, _ in found)
            parts = [x.extent for x in region.region if isinstance(x.extent, tirx.Select)]
            # of an iteration that a bulk copy leaves out whole there is no last tile
            part = [x for x in parts if not ir.is_const(x.false_value, 0)]
            if part and not known:
                found.append((region.source, part[0]))
    return found


def clear_spare_rows(buffer: ir.Var, tail: Any, thread: Any, num_threads: int) -> ir.Stmt:
    """Write zeros to the rows of each slot that the last tile leaves out.

    A thread stays at its columns, and goes down from the first row that is left out: a turn is a
    comparison and a store. Rows of 88, by division, took 1 us of 8.
    """
    dtype = ir.dtype_of(buffer)
    *planes, rows, columns = (int(x) for x in buffer.shape)
    size = 1 if dtype == "bool" else PRINTED_LANES[dtype_bytes(dtype)]  # 16 bytes, 4 of bytes
    chunks = columns // size
    across = min(chunks, num_threads)
    down = num_threads // across  # rows at once
    zero = tirx.const(0, dtype)
    zeros = tirx.Broadcast(zero, size) if size > 1 else zero
    thread = ir.as_int32(thread)
    first = ir.as_int32(tail) + tirx.floordiv(thread, across)

    def store(plane: list[Any], row: Any, chunk: Any) -> ir.Stmt:
        place = tirx.Ramp(chunk * size, 1, size) if size > 1 else chunk
        inside = row < rows
        if num_threads % across:
            inside = tirx.And(thread < down * across, inside)
        if chunks % across:
            inside = tirx.And(chunk < chunks, inside)
        return ir.IfThenElse(inside, tirx.BufferStore(buffer, zeros, [*plane, row, place]), None)

    def of_plane(number: Any) -> ir.Stmt:
        plane: list[Any] = []
        for extent in reversed(planes):
            plane.insert(0, tirx.floormod(number, extent))
            number = tirx.floordiv(number, extent)

        def of_row(turn: Any) -> ir.Stmt:
            row = first + turn * down

            def of_chunk(part: Any) -> ir.Stmt:
                return store(plane, row, part * across + tirx.floormod(thread, across))

            return ir.make_loop("part", -(-chunks // across), of_chunk)

        return ir.make_loop("turn", -(-rows // down), of_row)

    return ir.make_loop("panel", prod(planes), of_plane)


def clear_in_consumers(kernel: Any, threads: ir.KernelThreads) -> Any | None:
    """Let consumers write the rows while loads are under way; None where that cannot be.

    It can where a block has one tile, and roles: then no load of the block fills these rows.
    """
    found = find_spare_rows(kernel)
    roles = _find_roles(kernel, threads.var)
    if not found or roles is None:
        return None
    binds = {x.var: x.value for x in ir.find_all(kernel, tirx.Bind)}
    loops = [x.loop_var for x in ir.find_all(roles, ir.For)]
    first = roles.condition.b
    num_threads = int(threads.count) - int(first)
    own = threads.var - first
    rows: list[ir.Stmt] = []
    for buffer, extent in found:
        whole, tail = (_written_out(x, binds) for x in (extent.condition, extent.false_value))
        if any(ir.depends_on(x, [*loops, threads.var]) for x in (whole, tail)):
            return None
        clear = clear_spare_rows(buffer, tail, own, num_threads)
        meet = fences.sync_named(ZERO_FILL_BARRIER, num_threads)
        every = ir.seq(clear, fences.proxy_async(), meet)
        crosses = ir.simplify(tirx.Not(whole))
        rows.append(every if ir.is_const(crosses, 1) else ir.IfThenElse(crosses, every, None))
    start, rest = _behind_registers(roles.else_case)
    new = ir.IfThenElse(roles.condition, roles.then_case, ir.seq(start, rows, rest))
    return ir.replace_nodes(kernel, ir.IfThenElse, {roles: new})


def _find_roles(kernel: Any, thread: Any) -> ir.IfThenElse | None:
    """Return the statement that parts a kernel's one producer from its consumers."""
    marks = ir.find_all(kernel, tirx.AttrStmt, lambda x: str(x.attr_key) == "hand_threaded")
    found = [x.body for x in marks if isinstance(x.body, ir.IfThenElse)]
    found = [x for x in found if x.else_case is not None and isinstance(x.condition, tirx.LT)]
    if thread is None or len(found) != 1 or len(marks) != 1:
        return None
    condition = found[0].condition
    is_first = condition.a.same_as(thread) and ir.static_int(condition.b) is not None
    return found[0] if is_first else None


def _behind_registers(consumers: ir.Stmt) -> tuple[list[ir.Stmt], list[ir.Stmt]]:
    """Part what consumers do after their `setmaxnreg`, where they have one."""
    first, *rest = ir.statements(consumers)
    moves = isinstance(first, ir.Evaluate) and is_op(first.value, SETMAXNREG)
    return ([first], list(rest)) if moves else ([], [first, *rest])


def _written_out(value: Any, binds: dict[ir.Var, Any]) -> Any:
    """Return a value without names for parts of it."""
    names = [x for x in binds if ir.depends_on(value, [x])]
    return (
        _written_out(ir.substitute(value, {x: binds[x] for x in names}), binds) if names else value
    )


def start_spare_rows(kernel: Any, threads: ir.KernelThreads) -> list[ir.Stmt]:
    """Return what gives values to rows that are read, and that no load fills."""
    found = find_spare_rows(kernel)
    fence = ir.seq(fences.proxy_async())
    always: list[ir.Stmt] = []
    sometimes: list[ir.Stmt] = []
    for buffer, rows in found:
        clear = clear_spare_rows(buffer, rows.false_value, threads.var, int(threads.count))
        is_left = ir.simplify(rows.false_value < rows.true_value)
        if ir.is_const(is_left, 1):
            always.append(clear)
        else:
            sometimes.append(ir.IfThenElse(is_left, ir.seq(clear, fence), None))
    return [*sometimes, *always, *([fence] if always else [])]
