"""Let loads run ahead of what reads them, where the same threads do both.

    for k in serial(8, annotations={"num_slots": 4}):
        trip = k
        with sblock(async_op="tma_load", channel=0):
            fill_slot(0, trip); tma_load(&ring[trip % 4], ...)
        use(ring[trip % 4])
  ->
    with sblock(async_op="tma_load", channel=0, ahead=[0, 1, 2]):
        for k in range(3):
            trip = k
            fill_slot(0, trip); ...
    for k in serial(8):
        trip = k
        if k < 5:
            with sblock(async_op="tma_load", channel=0, ahead=[3]):
                fill_slot(0, trip + 3); tma_load(&ring[(trip + 3) % 4], ...)
        use(ring[trip % 4])

The load of an iteration overwrites what the iteration before read, so that one barrier an iteration
is enough.

Before: loads have channels, and loops that are split between roles are marked no more.  After: no
`num_slots` is left.
Not here: the barriers and waits in between (insert_syncs.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.plan.channel import find_calls, is_load
from tvm_hopper.plan.pipeline_plan import pipelined_loops
from tvm_hopper.requests.keys import AHEAD, FILL_SLOT, NUM_SLOTS

from .plan_pipeline import ROLLED


@dataclass(frozen=True)
class ExpansionPlan:
    """A loop, its block of loads, one of its statements, and how many trips that runs ahead."""

    loop: ir.For
    block: ir.SBlockRealize | None  # of an iteration, if it allocates anything
    parts: tuple[ir.Stmt, ...]
    trip: tirx.Bind
    load: ir.SBlockRealize
    ahead: int


def plan_expansions(kernel: ir.For) -> tuple[ExpansionPlan, ...]:
    """Return the loops of a kernel whose own threads load, the innermost first."""
    return tuple(_plan_loop(loop) for loop in reversed(pipelined_loops(kernel)))


def _plan_loop(loop: ir.For) -> ExpansionPlan:
    block = loop.body if isinstance(loop.body, ir.SBlockRealize) else None
    parts = tuple(ir.statements(loop.body if block is None else block.block.body))
    # Those of an inner loop may stand there already, ahead of it.
    load = next(x for x in parts if is_load(x) and AHEAD not in x.block.annotations)
    (call,) = find_calls(load, FILL_SLOT)
    bind = next(x for x in parts if isinstance(x, tirx.Bind) and x.var.same_as(call.trip))
    return ExpansionPlan(loop, block, parts, bind, load, int(loop.annotations[NUM_SLOTS]) - 1)


def rewrite_loop(plan: ExpansionPlan) -> ir.Stmt:
    """Issue the first loads in front of the loop, and in it those of later iterations."""
    loop, ahead = plan.loop, plan.ahead
    k = loop.loop_var
    first, load = None, plan.load
    if ahead:
        first = _first_loads(plan)
        moved = ir.substitute(load, {k: k + ahead, plan.trip.var: plan.trip.var + ahead})
        load = _with_notes(moved, {AHEAD: [ahead]})
        load = ir.IfThenElse(ir.simplify(k < loop.extent - ahead), load, None)
    body = ir.seq([load if part.same_as(plan.load) else part for part in plan.parts])
    if plan.block is not None:
        body = ir.SBlockRealize([], True, ir.with_block(plan.block.block, body=body))
    notes = {n: v for n, v in loop.annotations.items() if n != NUM_SLOTS}
    return ir.seq(first, ir.with_body(loop, body, annotations={**notes, **ROLLED}))


def _first_loads(plan: ExpansionPlan) -> ir.Stmt:
    """Load what the first iterations read, or as many of them as there are."""
    loop, block = plan.loop, plan.load.block
    known = ir.static_int(loop.extent)

    def load(number: Any) -> ir.Stmt:
        value = ir.cast_like(number, loop.loop_var)
        part = ir.seq(plan.trip, block.body)
        if ir.static_int(value) is not None:  # one trip: nothing counts it
            part = ir.substitute(block.body, {plan.trip.var: plan.trip.value})
        part = ir.substitute(part, {loop.loop_var: value})
        if known is None:
            part = ir.IfThenElse(ir.simplify(value < loop.extent), part, None)
        return _fold(ir.fresh_variables(part))

    count = plan.ahead if known is None else min(plan.ahead, known)
    whole = [ir.full_region(region.source) for region in block.writes]
    body = ir.make_loop("k", count, load)
    notes = {**block.annotations, AHEAD: list(range(count))}
    return ir.opaque_block(
        block.name_hint, body, reads=block.reads, writes=whole, annotations=notes
    )


def _fold(stmt: ir.Stmt) -> ir.Stmt:
    """Simplify integer arithmetic: one first load has numbers for its loop's variable and trip."""

    def outermost(node: Any, mutator: Any) -> Any:
        is_integer = ir.dtype_of(node).startswith("int")
        return ir.simplify(node) if is_integer else mutator.default_mutate(node)

    kinds = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod)
    return ir.mutate(stmt, [(kind, outermost) for kind in kinds])


def _with_notes(realize: ir.SBlockRealize, notes: dict[str, Any]) -> ir.SBlockRealize:
    block = realize.block
    new = ir.with_block(block, annotations={**block.annotations, **notes})
    return ir.SBlockRealize([], True, new)


@prim_func_pass(opt_level=0, name="tvm_hopper.ExpandPipeline")
class ExpandPipeline:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Expand the loops of one function."""

        def expand(kernel: ir.For) -> ir.For:
            while plans := plan_expansions(kernel):
                kernel = ir.replace_nodes(kernel, ir.For, {plans[0].loop: rewrite_loop(plans[0])})
            return kernel

        return ir.map_kernels(func, expand)
