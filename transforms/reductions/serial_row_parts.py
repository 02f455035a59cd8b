"""Let one thread block process all parts of a row in order, on chips without clusters.

    for tz in thread_binding(8, "threadIdx.z"):            a thread block of a cluster each
        own[0] = f(part[tz, 0])
        tvm_thread_allreduce(1, own[0], True, total[0], tz, tx)
        Y[tz, ..] = g(part[tz, 0], total[0])
  ->
    for p in unroll(8): own[p, 0] = f(part[p, p, 0])
    total[0, 0] = own[0, 0]
    for p in 1..7: total[0, 0] = total[0, 0] + own[p, 0]
    tvm_thread_allreduce(1, total[0, 0], True, total[0, 0], tx)
    for p in 1..7: total[p, 0] = total[0, 0]
    for p in unroll(8): Y[p, ..] = g(part[p, p, 0], total[p, 0])

Each part has its own registers, or local memory where there are too many: right, and slow.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.keys import BLOCKS_PER_SM

ALLREDUCE = "tirx.tvm_thread_allreduce"
SCOPE = "reduce_scope"


def rewrite_serial_row_parts(kernel: ir.For, part: ir.For) -> Any:
    """Take a kernel's loop over parts of a row into it, around each of its statements."""
    for block in ir.find_all(kernel, ir.SBlock):
        for old in block.alloc_buffers:
            if str(old.scope()) == "local":
                kernel = _number(kernel, old, part)
    outer = ir.find_all(kernel, ir.SBlock)[0]
    allocated = list(outer.alloc_buffers)
    body = _distribute(outer.body, part, allocated)
    kernel = ir.replace_nodes(
        kernel, ir.SBlock, {outer: ir.with_block(outer, body=body, alloc_buffers=allocated)}
    )

    def visit(loop: ir.For, mutator: Any) -> Any:
        loop = mutator.default_mutate(loop)
        if loop.loop_var.same_as(part.loop_var):
            return loop.body
        rest = {k: v for k, v in loop.annotations.items() if k != BLOCKS_PER_SM}
        return ir.with_body(loop, loop.body, annotations=rest)

    return ir.mutate(kernel, [(ir.For, visit)])


def _number(kernel: ir.For, old: ir.Var, part: ir.For) -> ir.For:
    """Give each part of a row registers of its own."""
    shape = (int(part.extent), *old.shape)
    alignment = int(old.ty.data_alignment)
    new = ir.new_buffer(old.name, shape, ir.dtype_of(old), "local", alignment)
    one = tvm.ir.Range.from_min_extent(part.loop_var, ir.cast_like(1, part.loop_var))
    return ir.reindex(
        ir.reallocate(kernel, old, new),
        old,
        new,
        lambda indices: [part.loop_var, *indices],
        lambda ranges: [one, *ranges],
    )


def _distribute(stmt: Any, part: ir.For, allocated: list[ir.Var]) -> ir.Stmt:
    """Put a loop over parts around statements, but for reductions across threads."""
    parts = ir.statements(stmt)
    if len(parts) > 1:
        return ir.seq([_distribute(x, part, allocated) for x in parts])
    if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == SCOPE:
        return _reduce(stmt, part)
    if isinstance(stmt, ir.SBlockRealize) and ir.find_all(
        stmt, tirx.AttrStmt, lambda x: x.attr_key == SCOPE
    ):
        allocated.extend(stmt.block.alloc_buffers)
        return _distribute(stmt.block.body, part, allocated)

    def one(p: Any) -> Any:
        return ir.substitute(stmt, {part.loop_var: ir.cast_like(p, part.loop_var)})

    return ir.make_loop("p", part.extent, one, ir.ForKind.UNROLLED)


def _reduce(scope: tirx.AttrStmt, part: ir.For) -> ir.Stmt:
    """Combine what a thread has of all parts, then reduce across the threads of the row."""
    call, count = scope.body.value, int(scope.body.value.args[0])
    sources, condition = call.args[1 : 1 + count], call.args[1 + count]
    results, threads = call.args[2 + count : 2 + 2 * count], call.args[2 + 2 * count :]
    reducer, stmts = scope.node, []

    def of(load: Any, number: int) -> Any:
        return ir.substitute(load, {part.loop_var: ir.cast_like(number, part.loop_var)})

    def store(to: Any, value: Any) -> ir.Stmt:
        return ir.BufferStore(to.source, value, list(to.indices))

    totals = [of(x, 0) for x in results]
    stmts += [store(to, of(x, 0)) for to, x in zip(totals, sources, strict=True)]
    for number in range(1, int(part.extent)):
        kept = [ir.Var("kept", ir.dtype_of(x)) for x in totals]
        values = dict(zip(reducer.lhs, kept, strict=True))
        values |= dict(zip(reducer.rhs, [of(x, number) for x in sources], strict=True))
        stmts += [tirx.Bind(var, x) for var, x in zip(kept, totals, strict=True)]
        combined = [ir.substitute(x, values) for x in reducer.result]
        stmts += [store(to, x) for to, x in zip(totals, combined, strict=True)]
    rest = [x for x in threads if not x.same_as(part.loop_var)]
    args = [call.args[0], *totals, condition, *totals, *rest]
    again = ir.Evaluate(ir.Call(call.op, args, ret_ty=call.ty))
    stmts.append(tirx.AttrStmt(scope.node, scope.attr_key, scope.value, again))
    for number in range(1, int(part.extent)):
        stmts += [store(of(x, number), to) for to, x in zip(totals, results, strict=True)]
    return ir.seq(stmts)
