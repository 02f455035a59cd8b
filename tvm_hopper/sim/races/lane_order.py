"""What the lanes of one warp know of each other.

A warp runs its lanes in lockstep here, but the order of PTX is one of threads: an arrival by lane 0
releases what lane 0 did and what it knows, and the other 31 lanes' accesses are among that only if
the lanes have met since (PTX ISA, memory consistency model, causality order: base causality order
starts from program order of one thread; `bar.warp.sync` "guarantees memory ordering among
participating threads", `shfl.sync`, `elect.sync` and wgmma's `.sync` do not).

The accesses of an instruction are kept as one, with the lanes that execute it: what is published of
such an access is all or nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.races.clocks import Bundle, Clock
from tvm_hopper.sim.races.shadow import ALL_LANES, MemoryAccess


def lane_bits(mask: Any) -> int:
    """Return the lanes of a mask as bits; None stands for all."""
    if mask is None:
        return ALL_LANES
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


class LaneOrder:
    """Accesses of one warp that not all of its lanes know.

    `spans` holds, for each set of lanes, the first and last epoch in which they made an access;
    `partial` the accesses by some of the lanes; `known` says that some lanes know all that others
    did up to an epoch; `held` the first and last epoch of what some release or fence left out.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.spans: dict[int, tuple[int, int]] = {}
        self.partial: list[MemoryAccess] = []
        self.known: list[tuple[int, int, int]] = []
        self.held: list[tuple[int, int]] = []

    def add(self, access: MemoryAccess) -> None:
        """Keep an access that one instruction made."""
        first, _ = self.spans.get(access.lanes, (access.epoch, 0))
        self.spans[access.lanes] = first, access.epoch
        if access.lanes != ALL_LANES:
            self.partial.append(access)

    def learn(self, lanes: int, epoch: int, of: int = ALL_LANES) -> None:
        """Let some lanes know what others did up to an epoch."""
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
            for who, of, epoch in self.known:
                if who & lanes and not made & ~of:
                    first = max(first, epoch + 1)
            if first <= last and (found is None or first < found):
                found = first
        return found

    def limit(self, clock: Clock, lanes: int, machine: Any) -> None:
        """Take out of a clock what none of `lanes` knows of the own warp."""
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
                    access.bit = machine.new_event()
                clock.events |= 1 << access.bit

    def left_out(self, access: MemoryAccess) -> bool:
        """Tell whether a release or fence by some lanes left this access out."""
        return access.event < 0 and any(low <= access.epoch <= high for low, high in self.held)

    def limit_all(self, bundle: Bundle, lanes: int, machine: Any) -> None:
        """Take out of a release what none of `lanes` knows of the own warp."""
        if lanes != ALL_LANES and self.spans:
            for clock in (bundle.generic, bundle.async_shared, bundle.async_global):
                self.limit(clock, lanes, machine)
