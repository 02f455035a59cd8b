"""The halves of an accumulator of several rows of instructions; see overlap_epilogue.py."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.plan import fragment
from tvm_hopper.plan.overlap_plan import OverlapPlan


class TileHalves:
    """The two halves of an accumulator, and the statements about one of them."""

    def __init__(self, plan: OverlapPlan) -> None:
        self.plan = plan
        cut = plan.half * plan.of_subtile
        sizes = cut, int(plan.accumulator.shape[0]) - cut
        dtype = ir.dtype_of(plan.accumulator)
        name = plan.accumulator.name
        self.registers = [
            ir.new_buffer(f"{name}_{n}", (size,), dtype, "local") for n, size in enumerate(sizes)
        ]
        self.firsts = 0, cut

    def of(self, stmt: ir.Stmt, number: int) -> ir.Stmt:
        """Return a copy of a statement that runs over all rows, of those of one half."""
        plan = self.plan
        first, count = (0, plan.half) if number == 0 else (plan.half, plan.subtiles - plan.half)

        def rows(loop: ir.For, mutator: Any) -> ir.Stmt:
            if loop.loop_var.name != fragment.SUBTILES:
                return mutator.default_mutate(loop)
            return take(loop, first, count)

        return self._moved(ir.mutate(ir.fresh_variables(stmt), [(ir.For, rows)]), number)

    def _moved(self, stmt: ir.Stmt, number: int) -> ir.Stmt:
        new, first = self.registers[number], self.firsts[number]
        old = self.plan.accumulator
        whole = list(ir.full_region(new).region)
        return ir.reindex(stmt, old, new, lambda at: [ir.simplify(at[0] - first)], lambda _: whole)

    def both(self, stmt: ir.Stmt) -> ir.Stmt:
        """Return a statement over all rows, as one for each half in turn."""
        return ir.seq(self.of(stmt, 0), self.of(stmt, 1))


def overwriting(product: ir.Stmt) -> ir.Stmt:
    """Let the first instruction on each register ignore what it holds.

    No loop keeps a fill with zeros in front of the fence: ptxas would serialise (C7519).
    """

    def adds(step: Any) -> Any:
        def one(call: ir.Call) -> ir.Call:
            is_flag = [isinstance(x, tirx.IntImm) and ir.dtype_of(x) == "bool" for x in call.args]
            if not any(is_flag):
                return call
            args = [step if f else x for f, x in zip(is_flag, call.args, strict=True)]
            return ir.Call(call.op, args, ret_ty=call.ty, attrs=call.attrs)

        return one

    def steps(loop: ir.For, mutator: Any) -> ir.For:
        if loop.loop_var.name != fragment.STEPS:
            return mutator.default_mutate(loop)
        return ir.replace(loop, ir.Call, adds(tirx.NE(loop.loop_var, 0)))

    if any(x.loop_var.name == fragment.STEPS for x in ir.find_all(product, ir.For)):
        return ir.mutate(product, [(ir.For, steps)])
    return ir.replace(product, ir.Call, adds(tirx.IntImm("bool", 0)))


def take(loop: ir.For, first: int, count: int) -> ir.Stmt:
    """Return some of the iterations of a loop; one is none."""
    if count == 1:
        return ir.substitute(loop.body, {loop.loop_var: first})
    var = ir.Var(loop.loop_var.name, ir.dtype_of(loop.loop_var))
    body = ir.substitute(loop.body, {loop.loop_var: var + first if first else var})
    notes = {**loop.annotations}
    if "pragma_unroll" in notes:
        notes["pragma_unroll"] = count
    return ir.with_body(
        loop, body, loop_var=var, extent=tirx.IntImm(ir.dtype_of(var), count), annotations=notes
    )
