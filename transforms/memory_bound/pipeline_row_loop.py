"""Software-pipeline the row loop: reduce row r + 1 before waiting for the cluster sum of row r.

    for r in range(63, annotations={"tvm_hopper.skew_turns": 1}):
        if r * 15 + bx < 1000:
            load row r, reduce it, send                        A
            with sblock("wait", skew_turns=1): mbarrier wait(arrived[r % 32], r // 32 % 2)   B
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

Before: blocks say where turns wait for their cluster (reduce_across_threads.py).  After: no request
and no such block is left.
Not here: turns whose later part uses registers of the earlier one, or that no cluster reduces; they
stay in order, which `explain` reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.fallbacks import Fallback, report
from tvm_hopper.requests.keys import SKEW_TURNS
from tvm_hopper.transforms.common.explain_notes import FallbackNote, Note
from tvm_hopper.transforms.kernel_pass import function_pass, map_noted

from .guard_row_loop import guard_row_loop
from .stage_rows_in_shared_plan import requested


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
    found = [_plan(loop) for loop in requested(kernel, SKEW_TURNS)]
    return tuple(x for x in found if x is not None)


def _plan(loop: ir.For) -> RowPipeline | None:
    exists, body = tirx.const(True), loop.body
    if isinstance(body, tirx.IfThenElse) and body.else_case is None:
        exists, body = body.condition, body.then_case
    waits = ir.find_blocks(body, SKEW_TURNS)
    parts = _split(body, waits[-1]) if waits else None
    if parts is None:
        return None
    one = RowPipeline(loop, exists, *map(tuple, parts))
    return one if _is_apart(ir.seq(list(one.first)), ir.seq(list(one.second))) else None


def _split(stmt: Any, at: Any) -> tuple[list[Any], list[Any], list[Any]] | None:
    """Return the statements before a block, those from it on, and the allocated buffers."""
    if isinstance(stmt, ir.SBlockRealize) and stmt.block.same_as(at):
        return [], [stmt], []
    if not ir.uses_node(stmt, at):
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
    turns = ir.with_body(one.loop, ir.seq(ahead, second))
    return ir.opaque_block("turns", ir.seq(begin, turns), alloc_buffers=list(one.buffers))


def _without_requests(kernel: ir.For) -> Any:
    """Take the requests away, and the blocks that say where turns come apart."""

    def plain(realize: ir.SBlockRealize, mutator: Any) -> Any:
        realize = mutator.default_mutate(realize)
        return realize.block.body if SKEW_TURNS in realize.block.annotations else realize

    return ir.without_annotations(ir.mutate(kernel, [(ir.SBlockRealize, plain)]), SKEW_TURNS)


def pipeline_row_loop(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Pipeline the row loops of one function's memory-bound kernels."""

    def pipeline(kernel: ir.For, notes: list[Note]) -> Any:
        if not is_memory_bound(kernel) or not (loops := requested(kernel, SKEW_TURNS)):
            return kernel
        plan = plan_row_pipeline(kernel)
        left = [x for x in loops if not any(x.same_as(one.loop) for one in plan)]
        notes += map(FallbackNote, report(func, map(_in_turn, left)))
        return _without_requests(rewrite_row_pipeline(kernel, plan))

    return map_noted(func, pipeline)


def _in_turn(loop: ir.For) -> Fallback:
    return Fallback(
        f"loop {loop.loop_var.name}, {SKEW_TURNS}",
        "each row waits for its cluster before the next one is reduced",
        "a reduction of several warps across a cluster, and a row that is loaded again behind it",
        "leave the request out",
    )


PipelineRowLoop = function_pass("PipelineRowLoop", guard_row_loop, pipeline_row_loop)
