"""Split a kernel's statements by role: producer or consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.keys import FILL_SLOT, NUM_SLOTS
from tvm_hopper.transforms.common.channel import find_calls, find_loads, is_load

from .specialize_warps_plan import ROLE_KEYS, RolePlan

Keep = Callable[[list[ir.SBlockRealize], list[ir.Stmt]], tuple[list[Any], list[Any]]]


def slot_of(load: ir.SBlockRealize) -> tuple[int, Any]:
    """Return the channel and the iteration of a block of loads."""
    (call,) = find_calls(load, FILL_SLOT)
    return call.channel, call.trip


def share(stmt: ir.Stmt, keep: Keep, plan: RolePlan, is_producer: bool) -> ir.Stmt:
    """Return a role's share: what `keep` makes of the loads, and of the rest all or nothing.

    `keep` is given a channel's loads and the statements next to them, and returns what takes their
    place and what follows the last of them. A producer keeps the variables that its share uses.
    """
    parts = ir.statements(stmt)
    loads: dict[int, list[ir.SBlockRealize]] = {}
    for part in filter(is_load, parts):
        loads.setdefault(slot_of(part)[0], []).append(part)
    beside = [part for part in parts if not is_load(part)]
    kept: list[Any] = []
    behind: list[Any] = []
    for part in parts:
        if is_load(part):
            together = loads[slot_of(part)[0]]
            if not part.same_as(together[0]):
                continue
            here, after = keep(together, beside)
            kept += here
            behind += after
        elif find_loads(part):
            kept.append(_share_inside(part, keep, plan, is_producer))
        elif not is_producer or isinstance(part, tirx.Bind):
            kept.append(part)
    return ir.seq(_used(kept) if is_producer else kept, behind)


def _used(parts: list[Any]) -> list[Any]:
    """Leave out variables that nothing uses."""
    kept: list[Any] = []
    for part in reversed(parts):
        if not isinstance(part, tirx.Bind) or ir.uses(kept, part.var):
            kept.append(part)
    return kept[::-1]


def _share_inside(part: ir.Stmt, keep: Keep, plan: RolePlan, is_producer: bool) -> ir.Stmt:
    if isinstance(part, ir.For):
        body = share(part.body, keep, plan, is_producer)
        # What has been requested, and by whom, is served; the rest is refused later on.
        served = {NUM_SLOTS, *(ROLE_KEYS if any(part.same_as(x) for x in plan.loops) else ())}
        notes = {k: v for k, v in part.annotations.items() if k not in served}
        return ir.with_body(part, body, annotations=notes)
    assert isinstance(part, ir.SBlockRealize), "a plan lets copies stand in loops and blocks alone"
    body = share(part.block.body, keep, plan, is_producer)
    block = ir.with_block(part.block, body=body)
    if is_producer:
        block = ir.with_block(block, alloc_buffers=[], reads=[], writes=[])
    return ir.SBlockRealize([], True, block)
