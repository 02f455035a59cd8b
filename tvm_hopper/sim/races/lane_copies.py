"""The cp.async copies of one warp, by the lanes that issue, commit and wait for them.

Groups belong to a thread: `cp.async.commit_group` closes the group of the executing thread, and
`cp.async.wait_group` waits for its groups alone (PTX ISA 9.7.9.25.3).  A warp does each with all
its lanes as a rule, and then one `CopyPart` stands for them.  Where some lanes commit, wait, arrive
or release without the others, the parts of both are divided, each piece with its own event
and access, so that steps of these lanes do not count for copies of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_hopper.sim.races.clocks import Clock
from tvm_hopper.sim.races.shadow import ALL_LANES, AccessLog, MemoryAccess


@dataclass(frozen=True, eq=False)
class CopyTarget:
    """Where the lanes of a copy write: `size` bytes from each offset.

    - `access`: the access that later accesses of these bytes are checked against.
    - `offsets`, `lanes` (numpy.ndarray): byte offsets, and the lane of each.
    """

    log: AccessLog
    access: MemoryAccess
    region: Any
    offsets: np.ndarray
    size: int
    lanes: np.ndarray

    def among(self, lanes: int, event: int) -> CopyTarget:
        """Return the part that some lanes write, with an additional event."""
        mine = (lanes >> self.lanes & 1) != 0
        access = self.log.add_piece(self.access, event, lanes)
        offsets = self.offsets[mine]
        cells = self.region.shadow.cells(offsets, self.size)
        writer = self.region.shadow.writer
        writer[cells] = np.where(writer[cells] == self.access.number, access.number, writer[cells])
        return CopyTarget(self.log, access, self.region, offsets, self.size, self.lanes[mine])


@dataclass(eq=False)
class CopyPart:
    """Copies of some lanes by one instruction.

    - `lanes`: as bits.
    - `events`: as clock bits: a thread that knows one of them knows that the bytes are there.
    - `target`: None if races are not looked for.
    - `age`: groups that these lanes have committed since the group of the copy; -1 until it is in
      one.
    """

    op: Any
    lanes: int
    events: int
    target: CopyTarget | None = None
    age: int = -1

    def divided(self, lanes: int, new_event: Callable[[], int]) -> list[CopyPart]:
        """Return the part, or its pieces inside and outside of some lanes."""
        if not self.lanes & lanes or not self.lanes & ~lanes:
            return [self]
        pieces = []
        for some in (self.lanes & lanes, self.lanes & ~lanes):
            event = new_event()
            target = None if self.target is None else self.target.among(some, event)
            pieces.append(replace(self, lanes=some, events=1 << event, target=target))
        return pieces


class LaneCopies:
    """The copies of one warp: those that some lane has to wait for, and those waited for."""

    def __init__(self, new_event: Callable[[], int]) -> None:
        self.new_event = new_event
        self.parts: list[CopyPart] = []
        self.waited: list[
            CopyPart
        ] = []  # copies that their lanes waited for; other lanes may not know of it
        self.events = 0  # events of all copies
        self.met = 0  # newest epoch that all lanes know
        self.number = 0  # number of the open group, for the timeline

    def add(self, part: CopyPart) -> None:
        """Begin a copy."""
        self.parts.append(part)
        self.events |= part.events

    def commit(self, lanes: int) -> None:
        """Close the open group of each of some lanes."""
        self.number += 1
        for part in self._inside(lanes):
            part.age += 1

    def covered(self, lanes: int, pending: int) -> list[CopyPart]:
        """Return the copies that some lanes wait for, without their newest `pending` groups."""
        return [part for part in self._inside(lanes) if part.age >= pending]

    def finish(self, part: CopyPart) -> None:
        """Take out a part that its lanes have waited for."""
        self.parts = [other for other in self.parts if other is not part]
        self.waited.append(part)

    def meet(self, epoch: int) -> None:
        """Note that all lanes know each other's accesses up to an epoch."""
        for part in self.waited:
            if _epoch(part) <= epoch:
                self.met |= part.events
        self.waited = [part for part in self.waited if _epoch(part) > epoch]

    def events_of(self, lanes: int) -> int:
        """Return the events of all copies that some lanes have begun."""
        if lanes == ALL_LANES:
            return self.events
        found = self.met
        for part in (*self._inside(lanes), *self._waited_inside(lanes)):
            found |= part.events
        return found

    def limit(self, clock: Clock, lanes: int, known: list[tuple[int, int, int]]) -> None:
        """Remove from a clock the copies that only other lanes have waited for.

        `known`: some lanes know all accesses of others up to an epoch.
        """
        if not any(part.lanes & ~lanes and clock.events & _either(part) for part in self.waited):
            return
        self._waited_inside(lanes)
        hidden = kept = 0
        for part in self.waited:
            if not clock.events & _either(part):
                continue
            if not part.lanes & ~lanes or any(
                knowing & lanes and not part.lanes & ~of and _epoch(part) <= epoch
                for knowing, of, epoch in known
            ):
                kept |= part.events
            else:
                hidden |= _either(part)
        clock.events = clock.events & ~hidden | kept

    def _inside(self, lanes: int) -> list[CopyPart]:
        """Return the unfinished parts of some lanes, after dividing parts shared with others."""
        if lanes == ALL_LANES:
            return self.parts
        self.parts = [p for part in self.parts for p in part.divided(lanes, self.new_event)]
        return [part for part in self.parts if not part.lanes & ~lanes]

    def _waited_inside(self, lanes: int) -> list[CopyPart]:
        self.waited = [p for part in self.waited for p in part.divided(lanes, self.new_event)]
        return [part for part in self.waited if not part.lanes & ~lanes]


def _epoch(part: CopyPart) -> int:
    return 0 if part.target is None else part.target.access.epoch


def _either(part: CopyPart) -> int:
    """Return its events, and those of the whole that it is a piece of."""
    return part.events | (0 if part.target is None else part.target.access.wider)
