"""Order of accesses between the lanes of one warp.

A warp runs its lanes in lockstep here, but the order of PTX is one of threads: an arrival by lane 0
releases the accesses and the knowledge of lane 0; other lanes' accesses are part of it only if
the lanes have met since (PTX ISA, memory consistency model, causality order: base causality order
starts from program order of one thread; `bar.warp.sync` "guarantees memory ordering among
participating threads", `shfl.sync`, `elect.sync` and wgmma's `.sync` do not).

The accesses of an instruction are kept as one, with the lanes that execute it: what is published of
such an access is all or nothing.  Until the lanes meet, the places that each lane touched are kept
next to it, so that two accesses of one warp race like those of two warps do: if different lanes
touch a byte, one of them writes it, and the lanes have not met in between.  So does a copy that one
lane issues, with what other lanes did before: it comes after the instructions of its thread alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.races.clocks import Bundle, Clock
from tvm_hopper.sim.races.lane_copies import LaneCopies
from tvm_hopper.sim.races.shadow import ALL_LANES, MemoryAccess


def lane_bits(mask: Any) -> int:
    """Return the lanes of a mask as bits; None stands for all."""
    if mask is None:
        return ALL_LANES
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


MANY = 64  # a lane number that stands for several lanes


@dataclass(slots=True)
class Footprint:
    """Where the lanes of one access lie: byte offsets of `size` bytes each, one lane an offset.

    `lanes` is None where every offset is of all lanes of the access: one place for all of them, or
    an instruction that hands data addressed by one lane to others (ldmatrix).
    """

    offsets: np.ndarray
    size: int
    lanes: np.ndarray | None
    epoch: int

    def table(self, low: int, high: int) -> np.ndarray:
        """Return the lane that touches each byte in [low, high): -1 none, MANY several."""
        table = np.full(high - low, -1, np.int8)
        place = (self.offsets - low)[:, None] + np.arange(self.size)
        keep = (place >= 0) & (place < high - low)
        lane = np.full(len(self.offsets), MANY) if self.lanes is None else self.lanes
        spread = np.broadcast_to(lane[:, None], place.shape)[keep].astype(np.int8)
        place = place[keep]
        table[place] = spread
        table[place[table[place] != spread]] = MANY  # the same byte in several lanes
        return table


class LaneOrder:
    """Accesses of one warp that not all of its lanes know.

    `spans` holds, for each set of lanes, the first and last epoch in which they made an access;
    `partial` the accesses by some of the lanes; `known` the last epoch up to which some lanes know
    all accesses of others; `held` the first and last epoch that some release or fence left out.
    `met` is the newest epoch whose accesses all lanes know; `footprints` are those of later epochs.
    `issued` is the asynchronous access that one lane currently issues: its number and its place.
    `copies` are those of cp.async.
    """

    def __init__(self, index: int, copies: LaneCopies) -> None:
        self.index, self.copies = index, copies
        self.spans: dict[int, tuple[int, int]] = {}
        self.partial: list[MemoryAccess] = []
        self.known: list[tuple[int, int, int]] = []
        self.held: list[tuple[int, int]] = []
        self.met = 0
        self.footprints: dict[int, Footprint] = {}
        self.issued: tuple[int, Any, int] = (-1, None, 0)

    def copy(self) -> LaneOrder:
        """Return the currently unknown accesses, for a later limit."""
        other = LaneOrder(self.index, self.copies)
        other.spans, other.partial = dict(self.spans), list(self.partial)
        other.known, other.held = list(self.known), self.held
        return other

    def retire(self) -> None:
        """Free the state of an ended warp that no check needs."""
        self.spans, self.partial, self.known, self.footprints = {}, [], [], {}
        self.copies = LaneCopies(self.copies.new_event)

    def add(self, access: MemoryAccess) -> None:
        """Keep an access that one instruction made."""
        first, _ = self.spans.get(access.lanes, (access.epoch, 0))
        self.spans[access.lanes] = first, access.epoch
        if access.lanes != ALL_LANES:
            self.partial.append(access)

    def learn(self, lanes: int, epoch: int, of: int = ALL_LANES) -> None:
        """Let some lanes know the accesses of others up to an epoch."""
        if lanes == of == ALL_LANES and epoch > self.met:
            self.met = epoch
            self.copies.meet(epoch)
            self.footprints = {n: f for n, f in self.footprints.items() if f.epoch > epoch}
        if not self.spans:
            return
        if lanes != ALL_LANES or of != ALL_LANES:
            self.known = [k for k in self.known if k[:2] != (lanes, of)]
            self.known.append((lanes, of, epoch))
            return
        self.spans = {
            made: (max(first, epoch + 1), last)
            for made, (first, last) in self.spans.items()
            if last > epoch
        }
        self.partial = [a for a in self.partial if a.epoch > epoch]
        self.known = [k for k in self.known if k[2] > epoch]

    def unknown_from(self, lanes: int) -> int | None:
        """Return the first epoch with an access that no one of `lanes` knows whole, if any."""
        found = None
        for made, (first, last) in self.spans.items():
            if not made & ~lanes:
                continue
            for knowing, of, epoch in self.known:
                if knowing & lanes and not made & ~of:
                    first = max(first, epoch + 1)
            if first <= last and (found is None or first < found):
                found = first
        return found

    def limit(self, clock: Clock, lanes: int, machine: Any) -> None:
        """Remove from a clock the accesses of the own warp that none of `lanes` knows."""
        self.copies.limit(clock, lanes, self.known)
        first = self.unknown_from(lanes)
        before = int(clock.epochs[self.index])
        if first is None or before < first:
            return
        clock.epochs[self.index] = first - 1
        if not self.held or self.held[-1][0] != first:
            self.held.append((first, before))
        self.held[-1] = first, before
        for access in self.partial:
            if first <= access.epoch <= before and not access.lanes & ~lanes:
                if access.bit < 0:
                    access.bit = machine.new_access_event()
                clock.events |= 1 << access.bit

    def left_out(self, access: MemoryAccess) -> bool:
        """Return whether a release or fence by some lanes left this access out."""
        return access.event < 0 and any(low <= access.epoch <= high for low, high in self.held)

    def limit_all(self, bundle: Bundle, lanes: int, machine: Any) -> None:
        """Remove from a release the accesses of the own warp that none of `lanes` knows."""
        if lanes != ALL_LANES and (self.spans or self.copies.waited):
            for clock in (bundle.generic, bundle.async_shared, bundle.async_global):
                self.limit(clock, lanes, machine)
            if bundle.fenced is not None:
                self.limit_all(bundle.fenced, lanes, machine)

    # -- accesses of one warp ---------------------------------------------------------------------

    def knows(self, lane: int, of: int, epoch: int) -> bool:
        """Return whether one lane knows another lane's accesses up to an epoch."""
        return any(
            knowing >> lane & 1 and made >> of & 1 and epoch <= e for knowing, made, e in self.known
        )

    def met_since(self, access: MemoryAccess, lanes: int) -> bool:
        """Return whether some lanes know an access of others in this warp."""
        return access.epoch <= self.met or any(
            not lanes & ~knowing and not access.lanes & ~of and access.epoch <= epoch
            for knowing, of, epoch in self.known
        )

    def place(self, access: MemoryAccess, offsets: Any, size: int, lanes: Any) -> None:
        """Keep where the lanes of an access lie."""
        flat = offsets if offsets.ndim == 1 else np.ravel(offsets)
        self.footprints[access.number] = Footprint(flat, size, lanes, access.epoch)

    def issue(self, access: MemoryAccess, offsets: Any, size: int) -> None:
        """Note where a copy that one lane issues reads or writes; nothing is kept of it."""
        self.issued = access.number, offsets, size

    def _footprint(self, access: MemoryAccess) -> Footprint | None:
        number, offsets, size = self.issued
        if access.number != number:
            return self.footprints.get(access.number)
        if isinstance(offsets, slice):
            offsets, size = np.arange(offsets.start, offsets.stop), 1
        places = np.ravel(offsets)
        lane = access.lanes.bit_length() - 1
        return Footprint(places, size, np.full(len(places), lane), access.epoch)

    def clash(self, earlier: MemoryAccess, later: MemoryAccess) -> bool:
        """Return whether different lanes touch a byte in two accesses, and have not met between."""
        if earlier.epoch <= self.met or not (earlier.lanes | later.lanes) & (
            (earlier.lanes | later.lanes) - 1
        ):
            return False
        one, two = self.footprints.get(earlier.number), self._footprint(later)
        if one is None or two is None:
            return False
        if one.lanes is two.lanes is not None and np.array_equal(one.offsets, two.offsets):
            return False
        if (
            one.lanes is None
            and earlier.writes
            and not (later.writes or later.lanes & ~earlier.lanes)
        ):
            return False  # all lanes wrote one value there: each reads its own
        low = int(max(one.offsets.min(), two.offsets.min()))
        high = int(min(one.offsets.max() + one.size, two.offsets.max() + two.size))
        if low >= high:
            return False
        first, second = one.table(low, high), two.table(low, high)
        differ = (first >= 0) & (second >= 0) & ((first != second) | (first == MANY))
        if not differ.any():
            return False
        pairs = set(zip(first[differ].tolist(), second[differ].tolist(), strict=True))
        return not all(
            MANY not in pair and self.knows(pair[1], pair[0], earlier.epoch) for pair in pairs
        ) and not self.met_since(earlier, later.lanes)
