"""Software-pipeline compute stages: later stages lag some iterations behind.

    for k in serial(8, annotations={"num_slots": 3}):
        with sblock("iteration"):
            c = alloc(shared)
            trip = k
            with sblock(async_op="tma_load", channel=0): fill_slot(0, trip); ...
            c[...] = f(ring[trip % 3])
            with sblock(shift=1): use(c, ring[trip % 3], k)
  ->
    with sblock("stages", handed_on=0):
        c = alloc(2 of c, shared)
        for k in serial(8, annotations={"num_slots": 3}):
            trip = k
            with sblock(async_op="tma_load", channel=0, kept=1): fill_slot(0, trip); ...
            if k >= 1:
                with sblock(late=1): use(c[(trip + 1) % 2], ring[(trip + 2) % 3], k - 1)
            c[trip % 2, ...] = f(ring[trip % 3])
        with sblock(late=1): use(c[1], ring[1], 7)

A product that warp groups issue late goes behind the first one of an iteration, and no branch may
hold it: the first iteration stands before the loop.

    for k in serial(8):                                  S = A B[0]; P = f(S)
        S = A B[k]                                       for k in serial(1, 7):
        P = f(S)                                ->           S = A B[k]
        with sblock(shift=1): O = O + P V[k]                 O = O + P V[k - 1]
                                                             P = f(S)
                                                         O = O + P V[7]

Other statements that run later go first in an iteration. One barrier between iterations is then
enough for what they read, and they do not wait for the copies of this iteration. Registers that the
previous iteration left need no second version. Shared arrays have a slot for each iteration in
between, and one. What the last iterations leave to do follows the loop. Slots that are read later
are given back later (`release`), and loads run that much less ahead (`kept`). Behind the loop of a
persistent kernel all are given back: loads of the next tile wait for them.

Before: iterations are counted, roles split; `shift` says how late.  After: no `shift` is left.
Not here: whether it can be done (late_stages.py), the barriers (insert_syncs.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir as tvm_ir, tirx

from tvm_hopper import ir
from tvm_hopper.requests.keys import (
    CHANNEL,
    FREE_SLOT,
    HANDED_ON,
    IN_ORDER,
    LATE,
    RELEASE,
    RESERVED_SLOTS,
    SHIFT,
)
from tvm_hopper.transforms.common.channel import find_calls, is_load, make_call

from .iteration_order import find_order
from .pipeline_compute_stages_plan import SkewPlan, plan_delayed_statements

Values = Mapping[Any, Any]


def rewrite_delayed_statements(plan: SkewPlan) -> ir.Stmt:
    """Rebuild a loop, with an epilogue for its last iterations after it."""
    loop, parts = plan.loop, list(plan.parts)
    names = ir.Names()
    held = {x: _new_ring(x, n, names) if n else x for x, n in plan.handed_on.items()}
    for tile, ring in held.items():
        if ring is not tile:
            parts = [_move_to_slot(part, tile, ring, plan) for part in parts]
    now = [_keep(part, plan) for part, n in zip(parts, plan.shifts, strict=True) if not n]
    later = [(n, part) for part, n in zip(parts, plan.shifts, strict=True) if n]
    later.sort(key=lambda one: -one[0])  # the latest stage has no readers here
    first = [x for x in now if isinstance(x, tirx.Bind)]
    rest = [x for x in now if not isinstance(x, tirx.Bind)]
    before = None
    if plan.lead:
        at = next(n for n, part in enumerate(rest) if part.same_as(parts[plan.lead - 1]))
        before, rest = _behind_product(plan, rest, at, later)
        loop = _without_first(loop)
    else:
        at = next((n for n, part in enumerate(rest) if not is_load(part)), len(rest))
        rest = [*rest[:at], *(_in_time(plan, n, part) for n, part in later), *rest[at:]]
    body = ir.seq(first, rest)
    if plan.block is not None:
        block = plan.block.block
        own = [x for x in block.alloc_buffers if x not in held]
        if own or block.annotations:
            new = ir.with_block(block, body=body, alloc_buffers=own)
            body = ir.SBlockRealize([], True, new)
    after = [_left_behind(plan, later, turn) for turn in range(max(plan.shifts))]
    work = ir.opaque_block(
        "stages",
        ir.seq(before, ir.with_body(loop, body), after, _give_back(plan)),
        alloc_buffers=[x for tile, x in held.items() if x is not tile],
        annotations={HANDED_ON: plan.channel},
    )
    kept = [x for tile, x in held.items() if x is tile]
    return ir.opaque_block("outlive", work, alloc_buffers=kept) if kept else work


def _behind_product(
    plan: SkewPlan, parts: list[Any], product: int, later: list[tuple[int, Any]]
) -> tuple[ir.Stmt, list[Any]]:
    """Put late products behind the first one; return the first iteration, and what others run."""
    assert not any(map(is_load, parts)), "a producer loads what warp groups multiply"
    end, order = product + 1, find_order(plan.loop, plan.threads)
    behind = [_about(part, n, _ago(plan, n)) for n, part in later]
    trip = next(iter(plan.trips))
    before = _first_iteration(plan, order.enclose(parts, product, end, trip))
    all_of_it = [*parts[:end], *behind, *parts[end:]]
    return before, order.enclose(all_of_it, product, end + len(behind))


def _in_time(plan: SkewPlan, shift: int, part: ir.SBlockRealize) -> ir.Stmt:
    """Run a statement for the iteration so many iterations ago, if there was one."""
    loop, k = plan.loop, plan.loop.loop_var
    begun = k - loop.min >= ir.cast_like(shift, k)
    return ir.IfThenElse(ir.simplify(begun), _about(part, shift, _ago(plan, shift)), None)


def _ago(plan: SkewPlan, shift: int) -> Values:
    """Return the iteration so many before."""
    return {x: x - ir.cast_like(shift, x) for x in (plan.loop.loop_var, *plan.trips)}


def _first_iteration(plan: SkewPlan, parts: list[Any]) -> ir.Stmt:
    """Emit the first iteration of what is not late, if there is one."""
    loop, k = plan.loop, plan.loop.loop_var
    values = {x: ir.substitute(value, {k: loop.min}) for x, value in plan.trips.items()}
    body = ir.seq([_begun(_with_values(x, {k: loop.min, **values})) for x in parts])
    if (known := ir.static_int(loop.extent)) is not None:
        return body if known else ir.seq()
    return ir.IfThenElse(loop.extent >= ir.cast_like(1, k), body, None)


def _begun(part: Any) -> Any:
    """Give back the slots of a first iteration: the loop's own statement counts the arrivals."""
    if not isinstance(part, ir.SBlockRealize) or RELEASE not in part.block.annotations:
        return part

    def arrive(node: ir.IfThenElse, mutator: Any) -> ir.Stmt:
        condition = ir.simplify(node.condition)
        if ir.is_const(condition, 0):
            return ir.seq()
        new = mutator.default_mutate(node)
        return ir.IfThenElse(condition, new.then_case, None)

    late, _ = part.block.annotations[RELEASE]
    notes = {**part.block.annotations, RELEASE: [late, 0]}
    block = ir.with_block(part.block, annotations=notes)
    return ir.mutate(ir.SBlockRealize([], True, block), [(ir.IfThenElse, arrive)])


def _without_first(loop: ir.For) -> ir.For:
    one = ir.cast_like(1, loop.loop_var)
    notes = {k: v for k, v in loop.annotations.items() if k != IN_ORDER}
    left = loop.extent if ir.is_const(loop.extent, 0) else loop.extent - one
    start, extent = ir.simplify(loop.min + one), ir.simplify(left)
    return ir.For(loop.loop_var, start, extent, loop.kind, loop.body, annotations=notes)


def _left_behind(plan: SkewPlan, later: list[tuple[int, Any]], turn: int) -> ir.Stmt:
    """Emit the epilogue of the late stages, for the iterations that exist."""
    loop, k = plan.loop, plan.loop.loop_var
    known = ir.static_int(loop.extent)
    found = []
    for shift, part in later:
        ago = shift - turn  # counted from after the last iteration
        if ago < 1 or (known is not None and known < ago):
            continue
        last = ir.simplify(loop.min + loop.extent - ir.cast_like(ago, k))
        values = {x: ir.substitute(value, {k: last}) for x, value in plan.trips.items()}
        stmt = _about(ir.fresh_variables(part), ago, {k: last, **values})
        if known is None:
            stmt = ir.IfThenElse(loop.extent >= ir.cast_like(ago, k), stmt, None)
        found.append(stmt)
    return ir.seq(found)


def _give_back(plan: SkewPlan) -> list[ir.Stmt]:
    """Free the slots that the last iterations left, if a later tile's loads wait for them."""
    loop, found = plan.loop, []
    own = [x for x in plan.parts if isinstance(x, ir.SBlockRealize)]
    for block in (x.block for x in own if RELEASE in x.block.annotations):
        (call,) = find_calls(block, FREE_SLOT)
        (branch,) = ir.find_all(block, ir.IfThenElse)
        trip = call.trip if isinstance(call.trip, ir.Var) else call.trip.a
        late = plan.released.get(call.channel, 0) if plan.loops_again else 0
        terms = [x for x in ir.conjuncts(branch.condition) if not ir.uses(x, trip)]
        for ago in range(late, 0, -1):
            exists = ir.simplify(loop.extent >= ir.cast_like(ago, loop.extent))
            last = loop.min + loop.extent - ir.cast_like(ago, loop.loop_var)
            freed = ir.simplify(ir.substitute(plan.trips[trip], {loop.loop_var: last}))
            free = ir.Evaluate(make_call(FREE_SLOT, call.channel, freed))
            kept = [*terms, *([] if ir.is_const(exists, 1) else [exists])]
            elected = ir.IfThenElse(ir.conjunction(kept), free, None)
            # lanes of a warp that arrives for all of them meet first
            body = ir.replace_nodes(block.body, ir.IfThenElse, {branch: elected})
            found.append(ir.opaque_block("give_back", body, annotations={RELEASE: [ago, 0]}))
    return found


def _about(part: ir.SBlockRealize, late: int, values: Values) -> ir.Stmt:
    """Let a statement be about an earlier iteration; no slot is that of a negative number."""
    block = _with_values(part, values, late).block
    notes = {name: x for name, x in block.annotations.items() if name != SHIFT}
    return ir.SBlockRealize([], True, ir.with_block(block, annotations={**notes, LATE: late}))


def _with_values(part: Any, values: Values, late: int = 0) -> Any:
    """Let a statement be about another iteration, with variables of its own."""

    def slot(node: tirx.FloorMod, mutator: Any) -> Any:
        slots, new = ir.static_int(node.b), values.get(node.a)
        if slots is None or new is None:
            return mutator.default_mutate(node)
        if isinstance(new, tirx.Sub) and new.a.same_as(node.a):  # not negative, and seen to be so
            return (node.a + ir.cast_like(-late % slots, node.a)) % node.b
        return ir.simplify(new % node.b)

    def variable(node: ir.Var, _: Any) -> Any:
        return ir.cast_like(values[node], node) if node in values else node

    return ir.mutate(ir.fresh_variables(part), [(tirx.FloorMod, slot), (ir.Var, variable)])


def _keep(part: ir.Stmt, plan: SkewPlan) -> ir.Stmt:
    """Let slots that are read later be given back, and filled, later."""
    if not isinstance(part, ir.SBlockRealize):
        return part
    block = part.block
    if is_load(part) and plan.kept.get(int(block.annotations[CHANNEL])):
        kept = plan.kept[int(block.annotations[CHANNEL])]
        kept = max(kept, int(block.annotations.get(RESERVED_SLOTS, 0)))
        new = ir.with_block(block, annotations={**block.annotations, RESERVED_SLOTS: kept})
        return ir.SBlockRealize(part.iter_values, part.predicate, new)
    if RELEASE in block.annotations:
        (call,) = find_calls(block, FREE_SLOT)
        if call.channel in plan.released:
            return _release_later(part, plan.released[call.channel], plan)
    return part


def _release_later(part: ir.SBlockRealize, late: int, plan: SkewPlan) -> ir.Stmt:
    """Give back the slot of `late` iterations ago, once there was such a trip."""

    def arrive(node: ir.IfThenElse, mutator: Any) -> ir.Stmt:
        calls = find_calls(node, FREE_SLOT)
        if not calls:
            return mutator.default_mutate(node)
        trip = calls[0].trip
        trip = trip if isinstance(trip, ir.Var) else trip.a
        terms = [x for x in ir.conjuncts(node.condition) if not ir.uses(x, trip)]
        count = plan.loop.loop_var - plan.loop.min if plan.loops_again else trip
        begun = count >= ir.cast_like(late, count)
        free = make_call(FREE_SLOT, calls[0].channel, trip - ir.cast_like(late, trip))
        return ir.IfThenElse(ir.conjunction([*terms, begun]), ir.Evaluate(free), None)

    block = ir.mutate(part.block, [(ir.IfThenElse, arrive)])
    release = [late, block.annotations[RELEASE][1]]
    notes = {**block.annotations, RELEASE: release}
    return ir.SBlockRealize([], True, ir.with_block(block, annotations=notes))


def _new_ring(tile: ir.Var, slots: int, names: ir.Names) -> ir.Var:
    shape = (slots, *(int(x) for x in tile.shape))
    alignment = int(tile.ty.data_alignment)
    return ir.new_buffer(names.take(tile.name), shape, ir.dtype_of(tile), tile.scope(), alignment)


def _move_to_slot(part: Any, tile: ir.Var, ring: ir.Var, plan: SkewPlan) -> Any:
    trip = next(iter(plan.trips))
    slot = ir.as_int32(trip % ir.cast_like(int(ring.shape[0]), trip))
    one = tvm_ir.Range.from_min_extent(slot, 1)
    return ir.reindex(part, tile, ring, lambda at: [slot, *at], lambda ranges: [one, *ranges])


def pipeline_compute_stages(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Skew the loops of one function."""

    def skew(kernel: Any) -> Any:
        while plans := plan_delayed_statements(kernel):
            kernel = ir.replace_nodes(
                kernel, ir.For, {plans[0].loop: rewrite_delayed_statements(plans[0])}
            )
        return kernel

    return ir.map_kernels(func, skew)
