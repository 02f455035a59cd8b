"""Store the initial value of a reduction before its loop.

    for r in range(63):
        for v in unroll(8):
            with sblock("sum"):
                where(r * 16 + bx < 1000)
                if r == 0: total[v] = 0.0
                total[v] = total[v] + tile[r, v]
  ->
    for v in unroll(8):
        total[v] = 0.0
    for r in range(63):
        for v in unroll(8):
            with sblock("sum"):
                where(r * 16 + bx < 1000)
                total[v] = total[v] + tile[r, v]

A thread that has no row stores its total, too: where a reduction is split between thread blocks, a
condition on rows would keep it from its initial value.  TVM's decompose_reduction asks whether rows
after such a condition belong to one variable, and refuses.

Before: initial values are under conditions on the first iteration of loops.  After: no such
condition is left around registers of a kernel that is bound by memory, if all that touches them
is in the same block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.transforms.kernel_pass import kernel_pass

_TURNS = (ir.ForKind.SERIAL, ir.ForKind.UNROLLED)


@dataclass(frozen=True)
class InitialValue:
    """Stores of initial values, and the loops before which they go."""

    stmt: Any  # as it is in its block: a condition, or the store itself
    stores: Any
    outermost: Any  # a loop, or the block where there is none
    around: tuple[ir.For, ...]  # inside of it, but for those whose first iteration it is
    turns: tuple[ir.For, ...]


def plan_initials(kernel: ir.For) -> tuple[InitialValue, ...]:
    """Find the initial values of registers that loops of a kernel store in their first iteration.

    Where the loops are of one iteration, a condition on the block is what they have to leave.
    """
    found = []
    loops = ir.find_all(kernel, ir.For, lambda x: x.kind in _TURNS)
    for realize in ir.find_all(kernel, ir.SBlockRealize):
        for stmt in ir.statements(realize.block.body):
            firsts = _first_turns(stmt)
            if not firsts and not _is_conditional(realize, stmt):
                continue
            inside = [x for x in loops if ir.uses_node(x, stmt)]  # outermost first
            turns = [x for x in inside if any(x.loop_var.same_as(v) for v in firsts)]
            nest = inside[inside.index(turns[0]) :] if turns else inside
            around = tuple(x for x in nest if x not in turns)
            stores = stmt.then_case if firsts else stmt
            written = ir.statements(stores)
            indices = [x for store in written for x in store.indices]
            if len(turns) != len(firsts) or not all(
                ir.is_const(x.extent, 1) or ir.depends_on(indices, [x.loop_var]) for x in around
            ):
                continue  # a value for each iteration, which is no initial one
            outermost = nest[0] if nest else realize
            if all(_is_own(outermost, realize.block, x.buffer) for x in written):
                found.append(InitialValue(stmt, stores, outermost, around, tuple(turns)))
    return tuple(found)


def _is_conditional(realize: ir.SBlockRealize, stmt: Any) -> bool:
    """Tell an initial value under its block's condition, which the block goes on to update."""
    if ir.is_const(realize.predicate, 1) or not _is_constant(stmt):
        return False
    loads = ir.find_all(realize.block.body, ir.TensorLoad)
    return any(x.source.same_as(stmt.buffer) for x in loads)


def _first_turns(stmt: Any) -> list[Any]:
    """Return the variables that are 0 where registers are given constants; none if it is not so."""
    if not isinstance(stmt, tirx.IfThenElse) or stmt.else_case is not None:
        return []
    if not all(_is_constant(x) for x in ir.statements(stmt.then_case)):
        return []
    terms = list(ir.conjuncts(stmt.condition))
    if not all(isinstance(x, tirx.EQ) and ir.is_const(x.b, 0) for x in terms):
        return []
    return [x.a for x in terms] if all(isinstance(x.a, ir.Var) for x in terms) else []


def _is_constant(stmt: Any) -> bool:
    return (
        isinstance(stmt, ir.BufferStore)
        and str(stmt.buffer.scope()) == "local"
        and isinstance(stmt.value, tirx.IntImm | tirx.FloatImm)
    )


def _is_own(place: Any, block: Any, buffer: ir.Var) -> bool:
    """Tell whether in all of a loop one block alone touches a register array."""
    return len(ir.accesses(place, buffer)) == len(ir.accesses(block, buffer))


def rewrite_initials(kernel: ir.For, plan: tuple[InitialValue, ...]) -> Any:
    """Put the stores before the outermost loops, and take them out of their blocks."""
    fronts: dict[Any, list[ir.Stmt]] = {}
    for one in plan:
        fronts.setdefault(one.outermost, []).append(_front(one))
    gone = [one.stmt for one in plan]

    def drop(block: ir.SBlock) -> ir.SBlock:
        stmts = ir.statements(block.body)
        kept = [x for x in stmts if not any(x.same_as(y) for y in gone)]
        return block if len(kept) == len(stmts) else ir.with_block(block, body=ir.seq(kept))

    for place, front in fronts.items():
        kind = ir.For if isinstance(place, ir.For) else ir.SBlockRealize
        after = ir.seq([*front, ir.replace(place, ir.SBlock, drop)])
        kernel = ir.replace_nodes(kernel, kind, {place: after})
    return kernel


def _front(one: InitialValue) -> ir.Stmt:
    stmt = ir.substitute(one.stores, {x.loop_var: 0 for x in one.turns})
    for loop in reversed(one.around):
        stmt = ir.with_body(loop, stmt)
    return ir.fresh_variables(stmt)


HoistReductionInits = kernel_pass(
    "HoistReductionInits", plan_initials, rewrite_initials, when=is_memory_bound
)
