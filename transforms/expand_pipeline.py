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
is enough. Where asynchronous stores read the slots, `stores_in_flight` of them are left to these:
loads run that many trips less ahead. Loads that complete in groups (cp.async) are a block for each
trip, also in front of the loop, since each group is waited for by itself.

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
from tvm_hopper.plan.channel import completes_by_group, find_calls, is_load, trip_variable
from tvm_hopper.plan.pipeline_plan import pipelined_loops
from tvm_hopper.requests.keys import AHEAD, FILL_SLOT, NUM_SLOTS, STORES_IN_FLIGHT

from .plan_pipeline import ROLLED


@dataclass(frozen=True)
class LoadAhead:
    """One block of loads of a loop, and what binds the number of its trip.

    It runs as many trips ahead as its ring has slots beside the one that is read, and those that
    are left to stores.
    """

    trip: tirx.Bind
    load: ir.SBlockRealize

    @property
    def ahead(self) -> int:
        """Trips."""
        block = self.load.block
        in_flight = int(block.annotations.get(STORES_IN_FLIGHT, 0))
        return int(block.writes[0].source.shape[0]) - 1 - in_flight


@dataclass(frozen=True)
class ExpansionPlan:
    """A loop, its statements, and its blocks of loads."""

    loop: ir.For
    block: ir.SBlockRealize | None  # of an iteration, if it allocates anything
    parts: tuple[ir.Stmt, ...]
    loads: tuple[LoadAhead, ...]


def plan_expansions(kernel: ir.For) -> tuple[ExpansionPlan, ...]:
    """Return the loops of a kernel whose own threads load, the innermost first."""
    return tuple(_plan_loop(loop) for loop in reversed(pipelined_loops(kernel)))


def _plan_loop(loop: ir.For) -> ExpansionPlan:
    block = loop.body if isinstance(loop.body, ir.SBlockRealize) else None
    parts = tuple(ir.statements(loop.body if block is None else block.block.body))
    loads = []
    # Those of an inner loop may stand there already, ahead of it.
    for load in (x for x in parts if is_load(x) and AHEAD not in x.block.annotations):
        (call,) = find_calls(load, FILL_SLOT)
        trip = trip_variable(call)
        bind = next(x for x in parts if isinstance(x, tirx.Bind) and x.var.same_as(trip))
        loads.append(LoadAhead(bind, load))
    return ExpansionPlan(loop, block, parts, tuple(loads))


def rewrite_loop(plan: ExpansionPlan) -> ir.Stmt:
    """Issue the first loads in front of the loop, and in it those of later iterations."""
    loop = plan.loop
    k = loop.loop_var
    first: list[ir.Stmt] = []
    moved: dict[ir.SBlockRealize, ir.Stmt] = {}
    for one in (x for x in plan.loads if x.ahead):
        first.append(_first_loads(plan, one))
        trip, ahead = one.trip.var, one.ahead
        load = _with_notes(ir.substitute(one.load, {k: k + ahead, trip: trip + ahead}), [ahead])
        moved[one.load] = ir.IfThenElse(ir.simplify(k < loop.extent - ahead), load, None)
    body = ir.seq([moved.get(part, part) for part in plan.parts])
    if plan.block is not None:
        body = ir.SBlockRealize([], True, ir.with_block(plan.block.block, body=body))
    notes = {n: v for n, v in loop.annotations.items() if n != NUM_SLOTS}
    return ir.seq(first, ir.with_body(loop, body, annotations={**notes, **ROLLED}))


def _first_loads(plan: ExpansionPlan, one: LoadAhead) -> ir.Stmt:
    """Load what the first iterations read, or as many of them as there are."""
    loop, block = plan.loop, one.load.block
    known = ir.static_int(loop.extent)
    count = one.ahead if known is None else min(one.ahead, known)
    whole = [ir.full_region(region.source) for region in block.writes]

    def load(number: Any) -> ir.Stmt:
        value = ir.cast_like(number, loop.loop_var)
        part = ir.seq(one.trip, block.body)
        if ir.static_int(value) is not None:  # one trip: nothing counts it
            part = ir.substitute(block.body, {one.trip.var: one.trip.value})
        return _fold(ir.fresh_variables(ir.substitute(part, {loop.loop_var: value})))

    def if_any(number: Any, stmt: ir.Stmt) -> ir.Stmt:
        value = ir.cast_like(number, loop.loop_var)
        if known is not None:
            return stmt
        return _fold(ir.IfThenElse(ir.simplify(value < loop.extent), stmt, None))

    def in_block(body: ir.Stmt, trips: list[int]) -> ir.Stmt:
        notes = {**block.annotations, AHEAD: trips}
        return ir.opaque_block(
            block.name_hint, body, reads=block.reads, writes=whole, annotations=notes
        )

    if completes_by_group(block):  # the loads of each trip are a group
        return ir.seq([if_any(n, in_block(load(n), [n])) for n in range(count)])
    body = ir.make_loop("k", count, lambda number: if_any(number, load(number)))
    return in_block(body, list(range(count)))


def _fold(stmt: ir.Stmt) -> ir.Stmt:
    """Simplify integer arithmetic: one first load has numbers for its loop's variable and trip."""

    def outermost(node: Any, mutator: Any) -> Any:
        is_integer = ir.dtype_of(node).startswith("int")
        return ir.simplify(node) if is_integer else mutator.default_mutate(node)

    kinds = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod)
    return ir.mutate(stmt, [(kind, outermost) for kind in kinds])


def _with_notes(realize: ir.SBlockRealize, ahead: list[int]) -> ir.SBlockRealize:
    block = realize.block
    new = ir.with_block(block, annotations={**block.annotations, AHEAD: ahead})
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
