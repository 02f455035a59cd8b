"""Software-pipeline the row loop: reduce row r + 1 before waiting for the cluster sum of row r.

    for r in range(63, annotations={"tvm_hopper.skew_turns": 1}):
        if r * 15 + bx < 1000:
            load row r, reduce it, send                        A
            mbarrier wait(arrived[r % 32], r // 32 % 2)        B
            load row r, store what the results make of it
  ->
    if 0 * 15 + bx < 1000: A(0)
    for r in range(63):
        if r + 1 < 63 and (r + 1) * 15 + bx < 1000: A(r + 1)
        if r * 15 + bx < 1000: B(r)

What thread blocks of a cluster send each other takes a microsecond, in which a thread block that is
alone on its SM has nothing to do. Here it reduces the next row. B loads its row once more, from
shared memory, so that no register outlives A. A row's room is free a turn later than it was, which
stage_rows_in_shared.py knows, and the cluster tells twice as often that rooms for its values were
read (cluster_exchange_loop.py).

Each turn is put under one condition first (guard_row_loop.py), with a request or without.

Before: turns wait for their cluster once.  After: no request is left.
Not here: turns whose later part uses registers of the earlier one; they stay in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.keys import SKEW_TURNS
from tvm_hopper.transforms.kernel_pass import function_pass

from .guard_row_loop import guard_row_loop

WAIT, SYNC, SEND = "tirx.cuda.mbarrier_wait", "tirx.tvm_storage_sync", "tirx.ptx.st_async"


@dataclass(frozen=True)
class RowPipeline:
    """A loop, when a turn of it does anything, its two parts, and buffers that they allocate."""

    loop: ir.For
    exists: Any
    first: tuple[ir.Stmt, ...]
    second: tuple[ir.Stmt, ...]
    buffers: tuple[ir.Var, ...]


def plan_row_pipeline(kernel: ir.For) -> tuple[RowPipeline, ...]:
    """Find the loops with a request whose turns come apart at the wait for their cluster."""
    found = [_plan(loop) for loop in requested(kernel)]
    return tuple(x for x in found if x is not None)


def requested(kernel: ir.For) -> list[ir.For]:
    """Return the loops with a request."""
    return ir.find_all(kernel, ir.For, lambda x: SKEW_TURNS in x.annotations)


def _plan(loop: ir.For) -> RowPipeline | None:
    exists, body = tirx.const(True), loop.body
    if isinstance(body, tirx.IfThenElse) and body.else_case is None:
        exists, body = body.condition, body.then_case
    sends = ir.find_all(body, tirx.Evaluate, lambda x: _is(x, SEND))
    waits = ir.find_all(body, tirx.Evaluate, lambda x: _is(x, WAIT))
    parts = _split(body, waits[-1]) if sends and waits else None
    if parts is None:
        return None
    one = RowPipeline(loop, exists, *map(tuple, parts))
    first, second = ir.seq(list(one.first)), ir.seq(list(one.second))
    meets = bool(ir.find_all(first, tirx.Evaluate, lambda x: _is(x, SYNC)))
    return one if meets and _is_apart(first, second) else None


def _is(stmt: tirx.Evaluate, name: str) -> bool:
    return getattr(getattr(stmt.value, "op", None), "name", "") == name


def _split(stmt: Any, at: Any) -> tuple[list[Any], list[Any], list[Any]] | None:
    """Return what is in front of a statement, it and what is behind it, and what is allocated."""
    if stmt.same_as(at):
        return [], [stmt], []
    if not ir.find_all(stmt, tirx.Evaluate, lambda x: x.same_as(at)):
        return None
    if isinstance(stmt, tirx.SeqStmt):
        parts = list(stmt.seq)
        for number, part in enumerate(parts):
            if (inner := _split(part, at)) is not None:
                front, rest, buffers = inner
                return [*parts[:number], *front], [*rest, *parts[number + 1 :]], buffers
    plain = isinstance(stmt, ir.SBlockRealize) and ir.is_const(stmt.predicate, 1)
    if plain and not stmt.iter_values and (inner := _split(stmt.block.body, at)) is not None:
        return inner[0], inner[1], [*stmt.block.alloc_buffers, *inner[2]]
    return None


def _is_apart(first: Any, second: Any) -> bool:
    """Tell whether the later part uses no variable and no register that the earlier one leaves."""
    if any(ir.uses(second, x.var) for x in ir.find_all(first, tirx.Bind)):
        return False
    stored = {x.buffer for x in ir.find_all(first, ir.BufferStore)}
    made: set[ir.Var] = set()
    for part in _in_order(second):
        loads = {x.source for x in ir.find_all(part, ir.TensorLoad)}
        if any(x in stored and x not in made and not ir.is_shared(x) for x in loads):
            return False
        if not isinstance(part, tirx.IfThenElse):
            made |= {x.buffer for x in ir.find_all(part, ir.BufferStore)}
    return True


def _in_order(stmt: Any) -> list[Any]:
    """Return statements one after another, those of blocks without axes among them."""
    found = []
    for part in ir.statements(stmt):
        inner = part.block.body if isinstance(part, ir.SBlockRealize) else None
        found += [part] if inner is None else _in_order(inner)
    return found


def rewrite_row_pipeline(kernel: ir.For, plan: tuple[RowPipeline, ...]) -> Any:
    """Put the first part of each turn in front of the second one of the turn before."""
    return ir.replace_nodes(kernel, ir.For, {one.loop: _skewed(one) for one in plan})


def _skewed(one: RowPipeline) -> Any:
    turn = one.loop.loop_var
    following = turn + ir.cast_like(1, turn)

    def first(number: Any, *more: Any) -> Any:
        exists = ir.simplify(ir.substitute(one.exists, {turn: number}))
        terms = [x for x in (*more, *ir.conjuncts(exists)) if not ir.is_const(x, 1)]
        stmts = ir.fresh_variables(ir.substitute(ir.seq(list(one.first)), {turn: number}))
        return ir.IfThenElse(ir.conjunction(terms), stmts, None) if terms else stmts

    second: Any = ir.seq(list(one.second))
    if not ir.is_const(one.exists, 1):
        second = ir.IfThenElse(one.exists, second, None)
    begin = first(one.loop.min)
    end = ir.simplify(one.loop.min + one.loop.extent)
    ahead = first(following, following < end)
    turns = ir.with_body(one.loop, ir.seq(ahead, second), annotations=_rest(one.loop))
    return ir.opaque_block("turns", ir.seq(begin, turns), alloc_buffers=list(one.buffers))


def pipeline_row_loop(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Skew the turns of one function's memory-bound kernels."""

    def skew(kernel: ir.For) -> Any:
        if not is_memory_bound(kernel) or not requested(kernel):
            return kernel
        after = rewrite_row_pipeline(kernel, plan_row_pipeline(kernel))
        left = {x: ir.with_body(x, x.body, annotations=_rest(x)) for x in requested(after)}
        return ir.replace_nodes(after, ir.For, left)

    return ir.map_kernels(func, skew)


PipelineRowLoop = function_pass("PipelineRowLoop", guard_row_loop, pipeline_row_loop)


def _rest(loop: ir.For) -> dict[str, Any]:
    return {k: v for k, v in loop.annotations.items() if k != SKEW_TURNS}
