"""Keep loops of one iteration around WGMMA, which the CUDA compiler would remove."""

from __future__ import annotations

from tvm_hopper import ir
from tvm_hopper.requests.keys import ACROSS_CLUSTER

from .fragment_loops_plan import FragmentNest
from .lower_wgmma_plan import MmaPlan


def runs_once(kernel: ir.For, plan: MmaPlan, in_each_block: bool = False) -> bool:
    """Tell whether every loop that adds to the accumulator has one iteration.

    One around the accumulator's fill as well starts a sum of its own each time. With
    `in_each_block` one whose iterations thread blocks are to share counts as one.
    """
    product = plan.product.realize
    fills = [x.nest for x in _fills(plan)]
    around = ir.find_all(kernel, ir.For, lambda loop: ir.uses_node(loop, product))
    adding = [
        loop
        for loop in around
        if loop.kind != ir.ForKind.THREAD_BINDING
        and not any(ir.uses_node(loop, fill) for fill in fills)
        and not (in_each_block and ACROSS_CLUSTER in loop.annotations)
    ]
    return all(ir.is_const(loop.extent, 1) for loop in adding)


def starts_from_zero(kernel: ir.For, plan: MmaPlan) -> bool:
    """Tell whether a product that runs once finds zeros: one fill, right before, unconditional."""
    fills = _fills(plan)
    if len(fills) != 1 or not ir.is_zero(fills[0].realize.block.body.value):
        return False
    fill, product = fills[0], plan.product.realize
    following = _following(kernel, fill.nest, plan.accumulator)
    if following is None or not ir.uses_node(following, product):
        return False
    touching = [
        x.nest for x in plan.nests if any(y.same_as(plan.accumulator) for y in x.accumulators)
    ]
    if any(ir.uses_node(following, x) for x in touching):
        return False
    branches = ir.find_all(following, ir.IfThenElse, lambda x: ir.uses_node(x, product))
    guards = ir.find_all(following, ir.SBlockRealize, lambda x: ir.uses_node(x, product))
    return not branches and all(ir.is_const(x.predicate, 1) for x in (fill.realize, *guards))


def _fills(plan: MmaPlan) -> list[FragmentNest]:
    """Return the nests that set the accumulator, and do not go on from what is there."""
    own = [x for x in plan.nests if x.target.same_as(plan.accumulator)]
    return [x for x in own if not ir.uses(x.realize.block.body.value, plan.accumulator)]


def _following(kernel: ir.For, fill: ir.Stmt, accumulator: ir.Var) -> ir.Stmt | None:
    """Return the statement that uses an accumulator next, right after its first one: a fill."""
    bodies = [ir.statements(body) for body in ir.find_all(kernel, ir.SeqStmt)]
    beside = [parts for parts in bodies if any(part.same_as(fill) for part in parts)]
    touching = [x for parts in beside for x in parts if ir.uses(x, accumulator)]
    return touching[1] if len(touching) > 1 and touching[0].same_as(fill) else None
