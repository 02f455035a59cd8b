"""Store initial values in front of the loop that they belong to.

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
behind such a condition belong to one variable, and refuses.

Before: initial values stand under conditions on the first turn of loops.  After: no such condition
is left around registers of a kernel that is bound by memory, if all that touches them stands in the
same block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound

_TURNS = (ir.ForKind.SERIAL, ir.ForKind.UNROLLED)


@dataclass(frozen=True)
class InitialValue:
    """A condition on first turns, the outermost loop of those, and the loops around the store."""

    condition: tirx.IfThenElse
    outermost: ir.For
    around: tuple[ir.For, ...]  # inside of it, but for those of which the condition asks


def plan_initials(kernel: ir.For) -> tuple[InitialValue, ...]:
    """Find the initial values of registers that loops of a kernel store in their first turn."""
    found = []
    loops = ir.find_all(kernel, ir.For, lambda x: x.kind in _TURNS)
    for block in ir.find_all(kernel, ir.SBlock):
        for stmt in ir.statements(block.body):
            firsts = _first_turns(stmt)
            inside = [x for x in loops if ir.uses_node(x, stmt)]  # outermost first
            turns = [x for x in inside if any(x.loop_var.same_as(v) for v in firsts)]
            if not firsts or len(turns) != len(firsts):
                continue
            nest = inside[inside.index(turns[0]) :]
            around = tuple(x for x in nest if x not in turns)
            if all(_is_own(turns[0], block, x.buffer) for x in ir.statements(stmt.then_case)):
                found.append(InitialValue(stmt, turns[0], around))
    return tuple(found)


def _first_turns(stmt: Any) -> list[Any]:
    """Return the variables that are 0 where registers are given constants; none if it is not so."""
    if not isinstance(stmt, tirx.IfThenElse) or stmt.else_case is not None:
        return []
    stores = ir.statements(stmt.then_case)
    if not all(_is_constant(x) for x in stores):
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


def _is_own(loop: ir.For, block: Any, buffer: ir.Var) -> bool:
    """Tell whether in all of a loop one block alone touches a register array."""
    return len(ir.accesses(loop, buffer)) == len(ir.accesses(block, buffer))


def rewrite_initials(kernel: ir.For, plan: tuple[InitialValue, ...]) -> Any:
    """Put the stores in front of the outermost loops, and take the conditions away."""
    fronts: dict[ir.For, list[ir.Stmt]] = {}
    for one in plan:
        fronts.setdefault(one.outermost, []).append(_front(one))
    gone = {one.condition for one in plan}

    def drop(block: ir.SBlock) -> ir.SBlock:
        kept = [x for x in ir.statements(block.body) if x not in gone]
        same = len(kept) == len(ir.statements(block.body))
        return block if same else ir.with_block(block, body=ir.seq(kept))

    planned = {
        loop: ir.seq([*front, ir.replace(loop, ir.SBlock, drop)]) for loop, front in fronts.items()
    }
    return ir.replace_nodes(kernel, ir.For, planned)


def _front(one: InitialValue) -> ir.Stmt:
    zeros = {x.a: 0 for x in ir.conjuncts(one.condition.condition)}
    stmt = ir.substitute(one.condition.then_case, zeros)
    for loop in reversed(one.around):
        stmt = ir.with_body(loop, stmt)
    return ir.fresh_variables(stmt)


@prim_func_pass(opt_level=0, name="tvm_hopper.HoistInitials")
class HoistInitials:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Move the initial values of one function's memory-bound kernels."""

        def hoist(kernel: ir.For) -> Any:
            if not is_memory_bound(kernel) or not (plan := plan_initials(kernel)):
                return kernel
            after = rewrite_initials(kernel, plan)
            assert not plan_initials(after), "HoistInitials left an initial value"
            return after

        return ir.map_kernels(func, hoist)
