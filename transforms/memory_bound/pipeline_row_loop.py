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

An exchange between the thread blocks of a cluster takes a microsecond, during which a block that is
alone on its SM would be idle. Here it reduces the next row. B loads its row once more, from shared
memory, so that no register outlives A. A row's slot is free one iteration later, as
StageRowsInShared assumes, and the cluster releases its exchange slots twice as often
(cluster_exchange_loop.py).

Before: turns are guarded, and wait for their cluster once.  After: no request is left.
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

WAIT, SYNC, SEND = "tirx.cuda.mbarrier_wait", "tirx.tvm_storage_sync", "tirx.ptx.st_async"


@dataclass(frozen=True)
class RowPipeline:
    """A row loop: its guard, the two parts of its body, and the buffers that they allocate."""

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
    """Return what is before a statement, it and what follows it, and what is allocated."""
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
    """Put the first part of each iteration before the second one of the iteration before."""
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


def _skew_turns(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Skew the iterations of one function's memory-bound kernels."""

    def skew(kernel: ir.For) -> Any:
        if not is_memory_bound(kernel) or not requested(kernel):
            return kernel
        after = rewrite_row_pipeline(kernel, plan_row_pipeline(kernel))
        left = {x: ir.with_body(x, x.body, annotations=_rest(x)) for x in requested(after)}
        return ir.replace_nodes(after, ir.For, left)

    return ir.map_kernels(func, skew)


PipelineRowLoop = function_pass("PipelineRowLoop", _skew_turns)


def _rest(loop: ir.For) -> dict[str, Any]:
    return {k: v for k, v in loop.annotations.items() if k != SKEW_TURNS}
