"""Split a kernel's statements by role: producer or consumer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.keys import ASYNC_OP, FILL_SLOT, IN_ORDER, NUM_SLOTS, RELEASE, SHIFT
from tvm_hopper.transforms.common.channel import find_calls, find_loads, is_load

from .specialize_warps_plan import ROLE_KEYS, RolePlan

Loads = list[ir.SBlockRealize]
Keep = Callable[[Loads, list[ir.Stmt], Any], tuple[list[Any], list[Any]]]
Ending = tuple[Loads, list[ir.Stmt], Any]  # loads, the statements next to them, the last iteration


def slot_of(load: ir.SBlockRealize) -> tuple[int, Any]:
    """Return the channel and the iteration of a block of loads."""
    (call,) = find_calls(load, FILL_SLOT)
    return call.channel, call.trip


def share(
    stmt: ir.Stmt,
    keep: Keep,
    plan: RolePlan,
    is_producer: bool,
    around: Sequence[Loads] = (),
    ending: Sequence[Ending] = (),
) -> ir.Stmt:
    """Return a role's share: what `keep` makes of the loads, and of the rest all or nothing.

    `keep` is given a channel's loads, the statements next to them, and when their tiles are read
    for the last time (None: always). It returns what takes their place, in front of the first
    reader of their tiles for consumers, and what follows the last one. A producer keeps the
    variables that its share uses. The loads `around` are those before a block that has all of
    their readers; those `ending` are before a loop that has the last one, in the iteration that is
    given with them.
    """
    parts = ir.statements(stmt)
    loads: dict[int, list[ir.SBlockRealize]] = {}
    for part in filter(is_load, parts):
        loads.setdefault(slot_of(part)[0], []).append(part)
    every = [*around, *loads.values()]
    before, behind, inside, last = _places(parts, every, keep, is_producer, ending)
    kept: list[Any] = []
    for number, part in enumerate(parts):
        kept += before[number]
        if find_loads(part) and not is_load(part):
            within = inside[number], last[number]
            kept.append(_share_inside(part, keep, plan, is_producer, *within))
        elif not is_load(part) and (not is_producer or isinstance(part, tirx.Bind)):
            kept.append(part)
        kept += behind[number]
    return ir.seq(_used(kept) if is_producer else kept)


def _places(
    parts: list[ir.Stmt],
    loads: list[Loads],
    keep: Keep,
    is_producer: bool,
    ending: Sequence[Ending],
) -> tuple[list[list[Any]], list[list[Any]], list[list[Loads]], list[list[Ending]]]:
    """Return four lists with an entry for each statement.

    - what goes before it, and what goes behind it
    - loads before it whose readers are all inside of it
    - loads before it of which only the last reader is inside of it
    """
    beside = [part for part in parts if not is_load(part)]
    before: list[list[Any]] = [[] for _ in parts]
    behind: list[list[Any]] = [[] for _ in parts]
    inside: list[list[Loads]] = [[] for _ in parts]
    end: list[list[Ending]] = [[] for _ in parts]
    for together in loads:
        number = _number(parts, together[0])
        first, last = _readers(parts, number or 0, together)
        if not is_producer and first == last and _holds_loads(parts[last]):
            inside[last].append(together)
            continue
        when = None
        if not is_producer and _ends_in_loop(parts[last], together):
            k, extent = parts[last].loop_var, parts[last].extent
            final = parts[last].min + extent - ir.cast_like(1, k)
            # `beside`: as many threads arrive inside of the loop as behind it.
            end[last].append((together, beside, k.equal(final)))
            when = ir.simplify(extent < ir.cast_like(1, extent))
        here, after = keep(together, beside, when)
        after = after if when is None else [_uncounted(x) for x in after]
        before[number if is_producer and number is not None else first] += here
        behind[last] += after
    for together, outside, when in ending:
        _, last = _readers(parts, 0, together)
        if _holds_loads(parts[last]):
            end[last].append((together, outside, when))
        else:
            behind[last] += keep(together, outside, when)[1]
    return before, behind, inside, end


def _ends_in_loop(part: ir.Stmt, loads: list[ir.SBlockRealize]) -> bool:
    """Tell a loop over loads of its own whose last iteration is the last to read others' tiles.

    A late statement (SHIFT) reads them behind the loop, for the last iterations.
    """
    if not isinstance(part, ir.For) or not find_loads(part):
        return False
    tiles = [region.source for load in loads for region in load.block.writes]
    late = ir.find_blocks(part, SHIFT)
    return not any(ir.accesses(block, tile) for block in late for tile in tiles)


def _uncounted(release: ir.SBlockRealize) -> ir.SBlockRealize:
    """Count no arrivals of a release that stands for another one, of a loop without iterations."""
    notes = {**release.block.annotations, RELEASE: [0, 0]}
    return ir.SBlockRealize([], True, ir.with_block(release.block, annotations=notes))


def _number(parts: list[ir.Stmt], part: ir.Stmt) -> int | None:
    return next((n for n, x in enumerate(parts) if x.same_as(part)), None)


def _holds_loads(part: ir.Stmt) -> bool:
    """Tell a block, which is no loop, with loads of its own."""
    return isinstance(part, ir.SBlockRealize) and not is_load(part) and bool(find_loads(part))


def _readers(parts: list[ir.Stmt], number: int, loads: list[ir.SBlockRealize]) -> tuple[int, int]:
    """Return the numbers of the first and of the last statement that touches the tiles of loads.

    Operations that follow the last one directly are one group with it: one wait covers them all.
    """
    tiles = [region.source for load in loads for region in load.block.writes]
    found = [
        n
        for n, part in enumerate(parts)
        if not is_load(part) and any(ir.accesses(part, x) for x in tiles)
    ]
    if not found:
        return number, len(parts) - 1
    first, last = found[0], found[-1]
    while all(map(_is_operation, parts[last : last + 2])) and last + 1 < len(parts):
        last += 1
    return first, last


def _is_operation(part: ir.Stmt) -> bool:
    return isinstance(part, ir.SBlockRealize) and ASYNC_OP in part.block.annotations


def _used(parts: list[Any]) -> list[Any]:
    """Leave out variables that nothing uses."""
    kept: list[Any] = []
    for part in reversed(parts):
        if not isinstance(part, tirx.Bind) or ir.uses(kept, part.var):
            kept.append(part)
    return kept[::-1]


def _share_inside(
    part: ir.Stmt,
    keep: Keep,
    plan: RolePlan,
    is_producer: bool,
    around: Sequence[Loads],
    ending: Sequence[Ending],
) -> ir.Stmt:
    if isinstance(part, ir.For):
        body = share(part.body, keep, plan, is_producer, ending=ending)
        # These requests are served here; others are refused later on.
        served = {NUM_SLOTS, *(ROLE_KEYS if any(part.same_as(x) for x in plan.loops) else ())}
        served |= {IN_ORDER} if is_producer else set()
        notes = {k: v for k, v in part.annotations.items() if k not in served}
        return ir.with_body(part, body, annotations=notes)
    assert isinstance(part, ir.SBlockRealize), "a plan lets copies stand in loops and blocks alone"
    body = share(part.block.body, keep, plan, is_producer, around, ending)
    block = ir.with_block(part.block, body=body)
    if is_producer:
        block = ir.with_block(block, alloc_buffers=[], reads=[], writes=[])
    return ir.SBlockRealize([], True, block)
