"""Match copies to ring slots and iterations, by mbarriers and addresses.

A ring are the mbarriers that the same statements copy on, or wait for. The stage of a copy is the
place of its barrier among them; its step is the phase times the number of stages plus the stage, so
that one number goes through all lanes with the data. Where one barrier serves several slots, or
none does, the places that one statement fills tell the stages.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tvm_hopper.sim.timeline.events import CP_ASYNC, CP_ASYNC_ARRIVES, LOADS, TimelineEvent

Barrier = tuple[str, int]  # buffer and number


class Fill(NamedTuple):
    """One filling of one stage: `ring` is the name of its barriers."""

    ring: str
    stage: int
    step: int


class Rings:
    """The rings of one CTA, and names for its barriers.

    - `place` (dict): of each barrier that copies complete on: the name of its ring, its stage, and
      how many stages there are.
    """

    def __init__(self, events: Iterable[TimelineEvent]) -> None:
        events = list(events)
        full, empty = _barriers(events)
        places: dict[str, set[int]] = defaultdict(set)
        for event in events:
            if event.kind in (CP_ASYNC, *LOADS):
                places[event.statement].update(event.addresses)
        self.places = {text: sorted(found) for text, found in places.items()}
        # the barrier that is after a group of cp.async, by warp and number of the group
        self.arrivals = {(e.warp, e.number): e for e in events if e.kind == CP_ASYNC_ARRIVES}
        self.names: dict[Barrier, str] = {}
        self.place: dict[Barrier, tuple[str, int, int]] = {}
        mixed = {b for ring in full for b, _ in ring} & {b for ring in empty for b, _ in ring}
        mixed |= {_first_buffer(event.statement) for event in events if event.kind in LOADS}
        for role, rings in (("full", full), ("empty", empty)):
            self._name(role, rings, mixed)
        # byte ranges of shared memory -> the start of copies into them, and their fillings
        self.copies: dict[tuple[int, int], list[tuple[int, Fill]]] = defaultdict(list)
        for event in events:
            if event.kind in (CP_ASYNC, *LOADS) and event.addresses:
                low = event.addresses[0]
                fill = self.fill(event)
                if fill is not None:
                    self.copies[low, low + event.num_bytes].append((event.start, fill))
        for found in self.copies.values():
            found.sort()

    def _name(self, role: str, rings: list[list[Barrier]], mixed: set[str]) -> None:
        """Name the barriers of rings; a buffer in `mixed` holds full and empty ones."""
        shown = [ring for ring in rings if ring[0][0] in mixed]
        for ring in rings:
            name = ring[0][0]
            is_mixed = name in mixed
            if is_mixed:  # distinguish them
                name = role if len(shown) == 1 else f"{role} {shown.index(ring)}"
            for stage, barrier in enumerate(ring):
                self.names[barrier] = f"{name}[{stage if is_mixed else barrier[1]}]"
                if role == "full":
                    self.place[barrier] = (name, stage, len(ring))

    def name(self, event: TimelineEvent) -> str:
        """Return the name of an event's mbarrier: "full[2]" for one that copies complete on."""
        known = self.names.get((event.barrier, event.slot))
        return known or f"{event.barrier}[{event.slot}]"

    def fill(self, event: TimelineEvent) -> Fill | None:
        """Return the filling of a copy, an acquire or a wait; None if it belongs to no ring."""
        place = self.place.get((event.barrier, event.slot))
        if place is not None:
            ring, stage, count = place
            places = self.places.get(event.statement, [])
            if count == 1 and len(places) > 1 and event.kind in LOADS:
                return Fill(ring, places.index(event.addresses[0]), event.phase)
            return Fill(ring, stage, event.phase * count + stage)
        if event.kind == CP_ASYNC:
            arrivals = self.arrivals.get((event.warp, event.number))
            return Fill("cp.async", -1, event.number) if arrivals is None else self.fill(arrivals)
        return None

    def read_by(self, event: TimelineEvent) -> Fill | None:
        """Return the newest filling of the bytes where an operand of a product begins."""
        best: tuple[int, Fill] | None = None
        for (low, high), found in self.copies.items():
            if any(low <= address < high for address in event.addresses):
                number = bisect.bisect_right([start for start, _ in found], event.start) - 1
                if number >= 0 and (best is None or found[number][0] > best[0]):
                    best = found[number]
        return None if best is None else best[1]


def _barriers(events: Sequence[TimelineEvent]) -> tuple[list[list[Barrier]], list[list[Barrier]]]:
    """Return the rings of barriers that copies complete on, and of barriers with waits."""
    filled: dict[str, set[Barrier]] = defaultdict(set)
    for event in events:
        if event.kind in ("acquire", CP_ASYNC_ARRIVES, *LOADS):
            filled[event.statement].add((event.barrier, event.slot))
    full = _together(filled)
    of_a_ring = {barrier for ring in full for barrier in ring}
    waited: dict[str, set[Barrier]] = defaultdict(set)
    for event in events:
        barrier = (event.barrier, event.slot)
        if event.kind == "wait" and event.barrier and barrier not in of_a_ring:
            waited[event.statement].add(barrier)
    return full, _together(waited)


def _first_buffer(statement: str) -> str:
    """Return the buffer that a copy fills: mbarriers in the same one have no name of their own."""
    found = re.search(r" &(\w+)\[", statement)
    return found[1] if found else ""


def _together(found: Mapping[str, set[Barrier]]) -> list[list[Barrier]]:
    """Return groups of barriers, in order: those that one statement names belong together.

    Where each statement names one alone (a loop that is written out), a buffer's are a group.
    """
    groups: list[set[Barrier]] = []
    for some in found.values():
        touching = [group for group in groups if group & some]
        groups = [group for group in groups if not group & some]
        groups.append(set(some).union(*touching))
    by_buffer: dict[str, list[set[Barrier]]] = defaultdict(list)
    for group in groups:
        by_buffer[min(group)[0]].append(group)
    for buffer, shown in by_buffer.items():
        if all(len(group) == 1 for group in shown):
            by_buffer[buffer] = [set().union(*shown)]
    return sorted(sorted(group) for shown in by_buffer.values() for group in shown)
