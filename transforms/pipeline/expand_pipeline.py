"""Write out prologue and loop of a pipeline whose threads both load and compute.

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

    for k in serial(8, annotations={"num_slots": 3}):
        trip = k
        with sblock(async_op="dma_load", channel=0): fill_slot(0, trip); ...
        use(ring[trip % 3])
  ->
    ...                                                         the first two, a block for each
    for k in serial(6):
        trip = k
        with sblock(async_op="dma_load", channel=0, ahead=[2]): fill_slot(0, trip + 2); ...
        use(ring[trip % 3])
    for k in serial(6, 7):
        trip = k
        read_slot(0, trip)
        use(ring[trip % 3])
    for k in serial(7, 8): ...

The load of an iteration overwrites what the iteration before read, so that one barrier an iteration
is enough. It is where the program has it; a load by cp.async goes after the first statement that
feeds the tensor cores, if there is a spare slot, so that they do not wait. Where asynchronous
stores read the slots, `stores_in_flight` of them are left to these: loads run that many iterations
less ahead. Loads that complete in groups (cp.async) are a block for each iteration, also before the
loop, since each group is waited for by itself. If a group must not be empty (DMA), or chunks follow
such a statement, the last iterations are peeled off the loop, each with a separate wait.

Statements that the schedule gives a later stage fall behind their loads first
(pipeline_compute_stages.py).

Before: loads have channels, and loops that are split between roles are marked no more.  After: no
`num_slots` is left.
Not here: the barriers and waits in between (insert_syncs.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import map_bodies
from tvm_hopper.requests.keys import (
    AHEAD,
    FILL_SLOT,
    NUM_SLOTS,
    READ_SLOT,
)
from tvm_hopper.transforms.common.channel import completes_by_group, find_calls, make_call
from tvm_hopper.transforms.kernel_pass import function_pass

from .expand_pipeline_plan import ExpansionPlan, LoadAhead, plan_expansions
from .pipeline_compute_stages import pipeline_compute_stages
from .plan_ring_buffers import ROLLED


def rewrite_loop(plan: ExpansionPlan) -> ir.Stmt:
    """Issue the first loads before the loop, and in it those of later iterations."""
    loop = plan.loop
    if ir.is_const(loop.extent, 0):  # no iteration: a load would have no barrier to complete on
        return ir.seq()
    k = loop.loop_var
    first: list[ir.Stmt] = []
    moved: dict[ir.SBlockRealize, ir.Stmt] = {}
    for one in (x for x in plan.loads if x.ahead):
        first.append(_first_loads(plan, one))
        trip, ahead = one.trip.var, one.ahead
        load = _with_notes(ir.substitute(one.load, {k: k + ahead, trip: trip + ahead}), [ahead])
        condition = ir.simplify(k < loop.extent - ahead)
        moved[one.load] = load if plan.peels else ir.IfThenElse(condition, load, None)
    notes = {n: v for n, v in loop.annotations.items() if n != NUM_SLOTS}
    after = ir.with_body(
        loop,
        _body(plan, moved, {x.load: x.behind for x in plan.loads if x.load in moved}),
        annotations=notes,
    )
    return _peel(plan, first, after, moved) if plan.peels else ir.seq(first, after)


def _body(
    plan: ExpansionPlan,
    loads: Mapping[ir.SBlockRealize, ir.Stmt],
    late: Mapping[ir.SBlockRealize, ir.Stmt | None],
) -> ir.Stmt:
    """Build an iteration with something in place of its loads, or behind the statements `late`."""

    def at(part: ir.Stmt) -> list[ir.Stmt]:
        behind = [loads[x] for x, place in late.items() if part.same_as(place)]
        return behind if late.get(part) is not None else [loads.get(part, part), *behind]

    body = ir.seq([at(part) for part in plan.parts])
    if plan.block is None:
        return body
    return ir.SBlockRealize([], True, ir.with_block(plan.block.block, body=body))


def _peel(
    plan: ExpansionPlan,
    first: list[ir.Stmt],
    loop: ir.For,
    moved: Mapping[ir.SBlockRealize, ir.Stmt],
) -> ir.Stmt:
    """Let a loop end where the first of its loads do, and put the iterations behind it one by one.

    `moved` are the loads of later iterations; those that run less far ahead go on.
    """
    k, extent, known = loop.loop_var, loop.extent, ir.static_int(loop.extent)

    def rest(one: LoadAhead, number: Any) -> ir.Stmt:
        (call,) = find_calls(one.load, FILL_SLOT)
        goes_on = ir.simplify(number + ir.cast_like(one.ahead, k) < extent)
        load = moved.get(one.load, one.load)
        if not ir.is_const(goes_on, 1):
            load = None if ir.is_const(goes_on, 0) else ir.IfThenElse(goes_on, load, None)
        return ir.seq(make_call(READ_SLOT, call.channel, one.trip.var), load)

    zero, notes = ir.cast_like(0, k), {n: v for n, v in loop.annotations.items() if n in ROLLED}
    most = ir.cast_like(plan.ahead, k)
    rolled = ir.simplify(tirx.max(extent - most, zero))
    drain: list[ir.Stmt] = []
    for n in range(plan.ahead if known is None else min(plan.ahead, known)):
        number = ir.simplify(rolled + n)
        loads = {one.load: rest(one, number) for one in plan.loads}
        trip = ir.fresh_variables(ir.with_body(loop, _body(plan, loads, {})))
        trip = ir.For(
            trip.loop_var, number, ir.cast_like(1, k), loop.kind, trip.body, annotations=notes
        )
        whole = (
            trip if known is not None else ir.IfThenElse(ir.simplify(number < extent), trip, None)
        )
        drain.append(whole)
    if ir.is_const(rolled, 0):
        return ir.seq(first, drain)
    return ir.seq(first, ir.with_body(loop, loop.body, extent=rolled), drain)


def _first_loads(plan: ExpansionPlan, one: LoadAhead) -> ir.Stmt:
    """Load what the first iterations read, or as many of them as there are."""
    loop, block = plan.loop, one.load.block
    known = ir.static_int(loop.extent)
    count = one.ahead if known is None else min(one.ahead, known)
    whole = [_in_any_slot(region) for region in block.writes]

    def load(number: Any) -> ir.Stmt:
        value = ir.cast_like(number, loop.loop_var)
        part = ir.seq(one.trip, block.body)
        if ir.static_int(value) is not None:  # one iteration: nothing counts it
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

    if completes_by_group(block):  # the loads of each iteration are a group
        return ir.seq([if_any(n, in_block(load(n), [n])) for n in range(count)])
    body = ir.make_loop("k", count, lambda number: if_any(number, load(number)))
    return in_block(body, list(range(count)))


def _in_any_slot(region: tirx.BufferRegion) -> tirx.BufferRegion:
    """Widen the part of a ring that a load fills to all slots; in one what is known stays."""
    _, *inside = region.region
    slots, *most = ir.full_region(region.source).region
    kept = [
        own if None not in (ir.static_int(own.min), ir.static_int(own.extent)) else full
        for own, full in zip(inside, most, strict=True)
    ]
    return tirx.BufferRegion(region.source, [slots, *kept])


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


def expand_pipeline(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Expand the loops of one function."""

    def expand(kernel: Any) -> Any:
        while plans := plan_expansions(kernel):
            kernel = ir.replace_nodes(kernel, ir.For, {plans[0].loop: rewrite_loop(plans[0])})
        return kernel

    return map_bodies(func, expand)


ExpandPipeline = function_pass("ExpandPipeline", pipeline_compute_stages, expand_pipeline)
