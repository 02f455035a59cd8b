"""Lanes of one warp that come to a barrier one part after another.

`barrier` and `barrier.cluster` without `.aligned` may be in both sides of a branch: they cause
"the executing thread to wait for all non-exited threads from its warp" (PTX ISA 9.1, 9.7.13.1,
9.7.13.3).  `bar.warp.sync` waits for the threads of its mask, wherever these execute one with the
same mask (9.7.13.2).

Lanes after a branch wait here for those inside of it.  So where nothing else can go on, the lanes
that a barrier lacks are taken to exit without it; if they come to a meeting after all, they would
have come to it while the others stood at the barrier, and that is the deadlock.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import LANES
from tvm_hopper.sim.machine.machine import Event
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.races.lane_order import lane_bits


class Gathering(Event):
    """A meeting of some lanes of one warp.

    - `parts` (list): lanes as bits, and their data, in the order of arrival.
    - `needed`: lanes that have to come, as bits.
    - `leaves`: lanes may exit instead of arriving.
    - `complete` (bool): all lanes that were needed are there, or will not come.
    - `acted` (bool): a thread has acted for all.
    - `generation` (int or None): generation of the barrier when a lane acted for all.
    """

    def __init__(self, name: str, needed: int, leaves: bool) -> None:
        super().__init__(name)
        self.needed, self.leaves = needed, leaves
        self.parts: list[tuple[int, Any]] = []
        self.complete = self.acted = False
        self.generation: int | None = None

    @property
    def lanes(self) -> int:
        """Return the lanes that are there."""
        found = 0
        for lanes, _ in self.parts:
            found |= lanes
        return found

    @property
    def absent(self) -> int:
        """Return the lanes that are not there."""
        return self.needed & ~self.lanes

    @property
    def mask(self) -> np.ndarray:
        """Return the lanes that are there as booleans."""
        return (self.lanes >> LANES & 1) != 0

    def bringing(self, data: Any) -> int:
        """Return the lanes that arrived with some data."""
        found = 0
        for lanes, brought in self.parts:
            found |= lanes if brought == data else 0
        return found


class GatherOps:
    """How the lanes of one warp wait for each other; a part of `Warp`."""

    blocked_on: tuple[str, Any, int, int] | None

    def init_gather(self) -> None:
        """Begin with no lane waiting."""
        self.gatherings: dict[Hashable, Gathering] = {}
        self.gone = 0  # lanes that others no longer wait for, as bits

    def gather_lanes(
        self,
        site: int,
        mask: Any,
        key: Hashable,
        needed: int,
        name: str,
        brings: Any = None,
        leaves: bool = True,
    ) -> Wait:
        """Wait until some lanes have come; return their meeting, and whether to act for all."""
        self.site = site
        if key not in self.gatherings:
            self.gatherings[key] = Gathering(name, needed & lane_bits(self.partial), leaves)
        meeting = self.gatherings[key]
        meeting.parts.append((lane_bits(mask), brings))
        if not meeting.absent:
            self._complete(meeting)
        while not meeting.complete:
            self.waiting = f"waits at {name} for lanes {meeting.absent:#x} of its own warp"
            self.blocked_on = ("lanes", meeting, 0, site)
            yield meeting
        self.blocked_on = None
        first, meeting.acted = not meeting.acted, True
        return meeting, first

    def _complete(self, meeting: Gathering) -> None:
        self.gatherings = {k: other for k, other in self.gatherings.items() if other is not meeting}
        meeting.complete = True
        self.machine.progress += 1
        self.machine.wake(meeting)

    def lanes_leave(self) -> bool:
        """Take lanes that a barrier waits for to exit, where nothing else can go on.

        Not those that are in the other side of a branch.
        """
        found = [m for m in self.gatherings.values() if m.leaves and not self.others]
        for meeting in found:
            self.gone |= meeting.absent
            self._complete(meeting)
        return bool(found)

    def meets(self, site: int, mask: Any, instruction: str) -> None:
        """Report lanes that come to a meeting although others waited until they had exited."""
        if self.lane_waits:
            self.lanes_met(lane_bits(mask))
        lanes = self.gone & lane_bits(mask)
        if lanes:
            self.report(
                "DEADLOCK",
                site,
                f"lanes {lanes:#x} of {self.label} come to {instruction} while the others of their "
                "warp wait for them at an earlier barrier",
                key=(site, "lanes"),
                missing="that barrier in every lane of the warp",
            )

    def waits_without(self, site: int, mask: Any) -> None:
        """Report a wait of lanes that others of their warp wait for: what ends it is unknown."""
        if self.gone & lane_bits(mask):
            self.machine.incomplete("a wait of lanes that others of their warp wait for", site)
