"""The mbarrier object: full phase count, pending arrivals, signed tx-count, one slot per phase.

Hardware keeps one phase bit; the whole count is kept here, since the rules to check need it.
"""

from __future__ import annotations

from typing import Any

from tvm_hopper.sim.races.clocks import Bundle

MAX_COUNT = (1 << 20) - 1


class Slot:
    """Knowledge that the arrivals of one phase publish; a bundle is None until a thread arrives.

    Only threads of the barrier's own CTA wait, so an arrival is near (same CTA), far at cluster
    scope, or far at CTA scope: the last does not order generic accesses.
    """

    def __init__(self) -> None:
        self.near: Bundle | None = None
        self.cluster: Bundle | None = None
        self.narrow: Bundle | None = None
        self.events = 0  # asynchronous copies that completed through this barrier
        self.generic_events = 0  # completed cp.async (generic proxy), as clock bits

    def publish(self, place: str, bundle: Bundle) -> None:
        """Add the knowledge of one arrival; `place` is "near", "cluster" or "narrow"."""
        present = getattr(self, place)
        if present is None:
            setattr(self, place, bundle.copy())
        else:
            present.join(bundle)

    def acquire(self, clock: Bundle, cluster_scope: bool, accesses: int) -> None:
        """Let a waiter learn everything that its wait orders; `accesses` as for `join_narrow`."""
        if self.near is not None:
            clock.join(self.near)
        if self.cluster is not None:
            if cluster_scope:
                clock.join(self.cluster)
            else:
                clock.join_narrow(self.cluster, accesses)
        if self.narrow is not None:
            clock.join_narrow(self.narrow, accesses)
        if self.events:
            clock.join_events(self.events)
        clock.generic.events |= self.generic_events


class MBarrier:
    """State after `mbarrier.init`: phase, expected and pending arrivals, tx-count.

    `try_complete` moves to the next phase when pending arrivals and tx-count are both exactly zero.
    """

    has_parity = True  # one bit distinguishes its phases

    def __init__(self, name: str, cta: Any, offset: int, count: int) -> None:
        self.name, self.cta, self.offset = name, cta, offset
        self.stem = name  # the buffer that its initialisation names; its number among these
        self.number = 0
        self.expected = self.pending = count
        self.tx = 0
        self.phase = 0
        self.slots = {0: Slot()}
        self.observed = -1  # newest phase that some wait has returned true for
        self.waiters: list[Any] = []
        self.outstanding: list[Any] = []  # copies issued on it and not yet complete
        self.used_early = False  # for bytes that copies bring, before the fence after its init
        self.filled = False  # copies complete on it: threads that wait for it consume them
        self.came: list[tuple[int, int, list[Any]]] = []  # phase, lanes, and the waits before
        self.arrivals: list[str] = []  # agents that arrived in the current phase
        self.init_access: Any = None
        self.fenced = False  # fence.mbarrier_init by the initialising thread
        self.expected_bytes = self.delivered_bytes = 0

    def carry(self) -> None:
        """Note that bytes are expected or arrive on it."""
        self.used_early = self.used_early or not self.fenced

    @property
    def needed(self) -> int:
        """Arrivals that complete a phase."""
        return self.expected

    @property
    def slot(self) -> Slot:
        """The slot of the phase in progress."""
        return self.slots[self.phase]

    def deliver(self, op: Any, num_bytes: int, last: bool, generic: bool = False) -> None:
        """Take bytes that an operation has written, through the async or the generic proxy."""
        self.tx -= num_bytes
        self.delivered_bytes += num_bytes
        if last:
            self.outstanding.remove(op)
            if generic:
                self.slot.generic_events |= op.events
            else:
                self.slot.events |= op.events

    def try_complete(self) -> bool:
        """Complete the phase if nothing is pending; tell whether it did."""
        if self.pending or self.tx:
            return False
        self.phase += 1
        self.pending = self.expected
        self.slots[self.phase] = Slot()
        self.slots.pop(self.phase - 3, None)
        self.arrivals = []
        self.expected_bytes = self.delivered_bytes = 0
        return True

    def passes(self, parity: int) -> bool:
        """Return whether a wait for this parity returns true now."""
        return (self.phase & 1) != (parity & 1)
