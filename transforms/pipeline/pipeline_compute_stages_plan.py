"""Plan loops whose later compute stages lag some iterations behind.

What an iteration allocates, one statement writes and a later one reads is handed on: shared arrays
in slots, registers as they are, since what runs later goes first (pipeline_compute_stages.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.keys import CHANNEL, FREE_SLOT, RELEASE, SHIFT
from tvm_hopper.transforms.common.channel import find_calls, find_loads, find_trips, is_load

from .late_stages import lead_of


@dataclass(frozen=True)
class SkewPlan:
    """A loop, its statements, and how many iterations behind each one is to run.

    - `block`: the block of an iteration, if it allocates anything.
    - `iterations`: the variables that count the iterations of its channels, and their values.
    - `channel`: the one whose iterations count the slots of what is handed on.
    - `handed_on`: what an iteration allocates and a later one, or what follows the loop, touches:
      its slots, 0 where one is enough.
    - `kept`: for each channel whose slots are read later: how many iterations.
    - `released`: for each of them that is given back: the slot of how many iterations ago.
    - `threads`: the loop over threads of the kernel.
    """

    loop: ir.For
    block: ir.SBlockRealize | None
    parts: tuple[ir.Stmt, ...]
    shifts: tuple[int, ...]
    trips: Mapping[ir.Var, Any]
    channel: int
    handed_on: Mapping[ir.Var, int]
    kept: Mapping[int, int]
    released: Mapping[int, int]
    threads: ir.KernelThreads

    @property
    def loops_again(self) -> bool:
        """Whether the loop runs once for each of several tiles: iterations are counted on."""
        own = self.loop.loop_var
        return any(
            not x.same_as(own) for value in self.trips.values() for x in ir.find_all(value, ir.Var)
        )

    @property
    def lead(self) -> int:
        """How many statements are issued before a late product; 0 if none is late."""
        return lead_of(self.parts, self.shifts)


def plan_delayed_statements(kernel: Any) -> tuple[SkewPlan, ...]:
    """Return the loops of a kernel with statements that are to run later, the innermost first."""
    loops = ir.find_all(kernel, ir.For, lambda x: any(map(_shift_of, _parts_of(x)[1])))
    return tuple(_plan_loop(kernel, loop) for loop in reversed(loops))


def _shift_of(part: ir.Stmt) -> int:
    return int(part.block.annotations.get(SHIFT, 0)) if isinstance(part, ir.SBlockRealize) else 0


def _parts_of(loop: ir.For) -> tuple[ir.SBlockRealize | None, tuple[ir.Stmt, ...]]:
    body = loop.body
    if isinstance(body, ir.SBlockRealize) and not _shift_of(body) and not is_load(body):
        return body, tuple(ir.statements(body.block.body))
    return None, tuple(ir.statements(body))


def _plan_loop(kernel: Any, loop: ir.For) -> SkewPlan:
    block, parts = _parts_of(loop)
    shifts = tuple(map(_shift_of, parts))
    channels = find_trips(kernel)
    trips = {x.var: x.value for x in parts if isinstance(x, tirx.Bind) and x.var in channels}
    handed_on = {}
    for tile in [] if block is None else block.block.alloc_buffers:
        touched = [n for n, part in zip(shifts, parts, strict=True) if ir.uses(part, tile)]
        if any(touched):
            between = max(touched) - min(touched)
            handed_on[tile] = between + 1 if between and ir.is_shared(tile) else 0
    kept: dict[int, int] = {}
    slots: dict[int, int] = {}
    for load in find_loads(kernel):
        rings = [region.source for region in load.block.writes]
        users = [n for n, x in zip(shifts, parts, strict=True) if any(ir.uses(x, r) for r in rings)]
        if max(users, default=0):
            number = int(load.block.annotations[CHANNEL])
            kept[number] = max(kept.get(number, 0), *users)
            slots[number] = int(rings[0].shape[0])
    released = _releases(parts, kept, slots)
    channel = channels[next(iter(trips))]
    threads = ir.threads_of(kernel)
    return SkewPlan(loop, block, parts, shifts, trips, channel, handed_on, kept, released, threads)


def _releases(
    parts: Sequence[ir.Stmt], kept: Mapping[int, int], slots: Mapping[int, int]
) -> dict[int, int]:
    """Return how many iterations late the slots of each ring are handed back."""
    released = {}
    for part in parts:
        if isinstance(part, ir.SBlockRealize) and RELEASE in part.block.annotations:
            (call,) = find_calls(part, FREE_SLOT)
            if call.channel in kept:
                late, before = kept[call.channel], int(part.block.annotations[RELEASE][0])
                # With no slot to spare nothing may be left of one iteration over the next.
                both = late + before
                released[call.channel] = both if both < slots[call.channel] else max(late, before)
    return released
