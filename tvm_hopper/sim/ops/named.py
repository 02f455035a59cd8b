"""Named barriers: `bar.sync`, `bar.arrive`, `__syncthreads` (PTX ISA 9.1, 9.7.13.1).

A warp arrives as a whole, with 32 threads. Without `.aligned` its lanes may come one part after
another, from several statements, and wait for each other before that (`gather.py`).
"""

from __future__ import annotations

from typing import Any

from tvm_hopper.sim.machine.lanes import one
from tvm_hopper.sim.machine.machine import Event
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.races.clocks import Bundle
from tvm_hopper.sim.races.shadow import ALL_LANES
from tvm_hopper.sim.trips.balance import ARRIVE, WAIT, BarrierFlow


class NamedBarrier(Event):
    """One of the 16 named barriers of a CTA, for one generation at a time."""

    has_parity = False

    def __init__(self, name: str, cluster_warps: int) -> None:
        super().__init__(name)
        self.count = 0
        self.arrived: dict[Any, int] = {}  # warp -> site
        self.threads = 0
        self.whole = False  # all threads that have not exited meet
        self.generation = 0
        self.published = Bundle(cluster_warps)
        self.acquirable = self.published
        self.aligned_site: int | None = None
        self.previous: list[tuple[Any, int]] = []  # arrivals of the generation before
        self.current: list[tuple[Any, int]] = []
        # generation -> warp -> (threads in which a predicate holds, threads): bar.red
        self.votes: dict[int, dict[Any, tuple[int, int]]] = {}

    @property
    def needed(self) -> int:
        """Threads that make a generation."""
        return self.count


class NamedOps:
    """The named barriers of one warp."""

    blocked_on: tuple[str, Any, int, int] | None
    flow: BarrierFlow

    def named(self, number: int) -> NamedBarrier:
        """Return a named barrier of this CTA."""
        found = self.cta.named.get(number)
        if found is None:
            found = NamedBarrier(
                f"barrier {number} of {self.cta.label}", self.machine.cluster_warps
            )
            self.cta.named[number] = found
        return found

    def join_named(
        self, site: int, mask: Any, number: int, count: int | None, aligned: bool, waits: bool
    ) -> NamedBarrier:
        """Arrive on a named barrier; without a count, of all threads that have not exited."""
        machine, barrier = self.machine, self.named(number)
        barrier.whole = count is None
        count = machine.padded_threads if count is None else count
        if not 0 <= number < 16:
            machine.at("NAMED_BAR_MISMATCH", self, site, f"barrier {number}: need 0 to 15")
        if aligned and self.lanes_of(mask) != ALL_LANES:
            machine.at(
                "WARP_CONVERGENCE",
                self,
                site,
                f"{barrier.name}: aligned barrier with {int(mask.sum())} of 32 lanes",
            )
        if count % 32:
            machine.at("NAMED_BAR_MISMATCH", self, site, f"{barrier.name}: count {count}")
        if barrier.arrived and count != barrier.count:
            machine.at(
                "NAMED_BAR_MISMATCH",
                self,
                site,
                f"{barrier.name}: {self.label} uses count {count}, others {barrier.count} in "
                f"generation {barrier.generation}",
                buffer=barrier.name,
            )
        if self in barrier.arrived:
            machine.at(
                "NAMED_BAR_MISMATCH",
                self,
                site,
                f"{barrier.name}: {self.label} contributes twice to generation "
                f"{barrier.generation}",
                buffer=barrier.name,
            )
        if aligned and waits:
            if barrier.aligned_site is None:
                barrier.aligned_site = site
            elif barrier.aligned_site != site:
                machine.at(
                    "NAMED_BAR_SITES",
                    self,
                    site,
                    f"{barrier.name}: an aligned barrier is reached from two statements in one "
                    "generation; each warp has to execute one of them as a whole",
                    buffer=barrier.name,
                )
        for other, epoch in barrier.previous:
            known = max(
                self.clock.generic.epochs[other.index], self.clock.narrow.epochs[other.index]
            )
            if other is not self and known < epoch:
                machine.at(
                    "NAMED_BAR_MISMATCH",
                    self,
                    site,
                    f"{barrier.name}: {self.label} may arrive in generation "
                    f"{barrier.generation - 1} too, in place of {other.label}: more threads use "
                    f"the barrier than its count of {count}",
                    buffer=barrier.name,
                )
                break
        barrier.current.append((self, self.epoch))
        barrier.count = barrier.count if barrier.arrived else count
        barrier.arrived[self] = site
        barrier.threads += 32
        self.flow.add(ARRIVE, barrier, 32)
        barrier.published.join(self.release(self.lanes_of(mask)))
        if barrier.threads >= self._needed(barrier):
            if barrier.threads > barrier.count:
                machine.at(
                    "NAMED_BAR_MISMATCH",
                    self,
                    site,
                    f"{barrier.name}: {barrier.threads} threads arrive, count {barrier.count}",
                )
            self._pass(barrier)
        return barrier

    def _needed(self, barrier: NamedBarrier) -> int:
        """Return the threads that a generation needs.

        `__syncthreads` and `bar.sync` without a count wait for the threads that have not exited
        (CUDA C++ Programming Guide, "Independent Thread Scheduling").
        """
        if not barrier.whole:
            return barrier.count
        return 32 * sum(not warp.finished for warp in self.cta.warps)

    def _pass(self, barrier: NamedBarrier) -> None:
        barrier.generation += 1
        barrier.previous, barrier.current = barrier.current, []
        barrier.acquirable = barrier.published
        barrier.published = Bundle(self.machine.cluster_warps)
        barrier.arrived, barrier.threads, barrier.aligned_site = {}, 0, None
        self.machine.progress += 1
        self.machine.wake(barrier)

    def leave_named(self) -> None:
        """Let barriers of the whole CTA go on that waited for this warp, which has exited."""
        for barrier in self.cta.named.values():
            if barrier.whole and barrier.arrived and barrier.threads >= self._needed(barrier):
                self._pass(barrier)

    def sync_named(
        self, site: int, mask: Any, number: int, count: int | None, aligned: bool
    ) -> Wait:
        """Arrive on a named barrier and wait for its generation."""
        self.site = site
        generation, lanes = yield from self._come_to_named(site, mask, number, count, aligned, True)
        barrier = self.named(number)
        while barrier.generation == generation:
            self.waiting = f"waits {barrier.name}"
            self.blocked_on = ("named", barrier, 0, site)
            yield barrier
        self.blocked_on = None
        self.learn_from(lanes, barrier.acquirable)

    def _come_to_named(
        self, site: int, mask: Any, number: int, count: int | None, aligned: bool, waits: bool
    ) -> Wait:
        """Arrive once the whole warp is there; return the generation, and which lanes wait for it.

        "`barrier{.cta}` instruction causes executing thread to wait for all non-exited threads from
        its warp and marks warps' arrival at barrier."
        """
        barrier, lanes = self.named(number), self.lanes_of(mask)
        self.meets(site, mask, barrier.name)
        if aligned or lanes == ALL_LANES:
            generation = barrier.generation
            self.join_named(site, mask, number, count, aligned, waits)
            if waits:
                self.flow.add(WAIT, barrier)
            return generation, lanes
        key = "named", number, count
        meeting, first = yield from self.gather_lanes(
            site, mask, key, ALL_LANES, barrier.name, waits
        )
        waiting = meeting.bringing(True)
        if first:
            meeting.generation = barrier.generation
            self.join_named(site, meeting.mask, number, count, False, waits)
            if waiting:
                self.flow.add(WAIT, barrier)
        return meeting.generation, self.whole(waiting)

    def op_tvm_storage_sync(self, site: int, mask: Any, scope: Any = "shared", *_: Any) -> Wait:
        """Run `__syncthreads`, or nothing for a warp."""
        if scope in ("shared", "shared.dyn", "global"):
            yield from self.sync_named(site, mask, 0, None, True)

    def op_cuda_cta_sync(self, site: int, mask: Any) -> Wait:
        """Run `__syncthreads`."""
        yield from self.sync_named(site, mask, 0, None, True)

    def op_cuda_warpgroup_sync(self, site: int, mask: Any, number: Any) -> Wait:
        """Synchronise 128 threads."""
        yield from self.sync_named(site, mask, one(number, mask), 128, True)

    def _aligned(self, mods: Any) -> bool:
        return mods["ptx_name"].startswith("bar_") or bool(mods.get("aligned"))

    def op_bar_sync(self, site: int, mask: Any, mods: Any, a: Any, b: Any = None) -> Wait:
        """Arrive and wait."""
        count = None if b is None else self.uniform(site, b, mask, "the count of a barrier")
        number = self.uniform(site, a, mask, "the number of a barrier")
        yield from self.sync_named(site, mask, number, count, self._aligned(mods))

    def op_bar_arrive(self, site: int, mask: Any, mods: Any, a: Any, b: Any) -> Wait:
        """Arrive without waiting for other warps."""
        number = self.uniform(site, a, mask, "the number of a barrier")
        count = self.uniform(site, b, mask, "the count of a barrier")
        yield from self._come_to_named(site, mask, number, count, self._aligned(mods), False)
