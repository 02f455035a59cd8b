"""Named barriers: `bar.sync`, `bar.arrive`, `bar.red`, `__syncthreads` (PTX ISA 9.1, 9.7.13.1).

A warp arrives as a whole, with 32 threads. Without `.aligned` its lanes may come one part after
another, from several statements, and wait for each other before that (`gather.py`).
"""

from __future__ import annotations

from typing import Any

from tvm_hopper.sim.loop_cuts.balance import ARRIVE, WAIT, BarrierFlow
from tvm_hopper.sim.machine.lanes import as_lanes, one
from tvm_hopper.sim.machine.machine import Meeting
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.races.shadow import ALL_LANES


class NamedBarrier(Meeting):
    """One of the 16 named barriers of a CTA, for one generation at a time."""

    def __init__(self, name: str, machine: Any) -> None:
        super().__init__(name, machine)
        self.count = 0
        self.arrived: dict[Any, int] = {}  # warp -> site
        self.threads = 0
        self.whole = False  # all threads that have not exited meet
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
            found = NamedBarrier(f"barrier {number} of {self.cta.label}", self.machine)
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
            self.report("NAMED_BAR_MISMATCH", site, f"barrier {number}: need 0 to 15")
        if aligned and self.lanes_of(mask) != ALL_LANES:
            text = f"{barrier.name}: aligned barrier with {int(mask.sum())} of 32 lanes"
            self.report("WARP_CONVERGENCE", site, text)
        if count % 32:
            self.report("NAMED_BAR_MISMATCH", site, f"{barrier.name}: count {count}")
        if barrier.arrived and count != barrier.count:
            text = (
                f"{barrier.name}: {self.label} uses count {count}, others {barrier.count} in "
                f"generation {barrier.generation}"
            )
            self.report("NAMED_BAR_MISMATCH", site, text, buffer=barrier.name)
        if self in barrier.arrived:
            text = (
                f"{barrier.name}: {self.label} contributes twice to generation {barrier.generation}"
            )
            self.report("NAMED_BAR_MISMATCH", site, text, buffer=barrier.name)
        if aligned and waits:
            if barrier.aligned_site is None:
                barrier.aligned_site = site
            elif barrier.aligned_site != site:
                text = (
                    f"{barrier.name}: an aligned barrier is reached from two statements in one "
                    "generation; each warp has to execute one of them as a whole"
                )
                self.report("NAMED_BAR_SITES", site, text, buffer=barrier.name)
        for other, epoch in barrier.previous:
            known = max(
                self.clock.generic.epochs[other.index], self.clock.narrow.epochs[other.index]
            )
            if other is not self and known < epoch:
                text = (
                    f"{barrier.name}: {self.label} may arrive in generation "
                    f"{barrier.generation - 1} too, in place of {other.label}: more threads use "
                    f"the barrier than its count of {count}"
                )
                self.report("NAMED_BAR_MISMATCH", site, text, buffer=barrier.name)
                break
        barrier.current.append((self, self.epoch))
        barrier.count = barrier.count if barrier.arrived else count
        barrier.arrived[self] = site
        barrier.threads += 32
        self.flow.add(ARRIVE, barrier, 32)
        barrier.published.join(self.release(self.lanes_of(mask)))
        if barrier.threads >= self._needed(barrier):
            if barrier.threads > barrier.count:
                text = f"{barrier.name}: {barrier.threads} threads arrive, count {barrier.count}"
                self.report("NAMED_BAR_MISMATCH", site, text)
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
        barrier.previous, barrier.current = barrier.current, []
        barrier.arrived, barrier.threads, barrier.aligned_site = {}, 0, None
        barrier.complete()

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

    def _operands(self, site: int, mask: Any, a: Any, b: Any) -> tuple[int, int | None]:
        """Return the number and the count of a barrier; None: no count is given."""
        number = self.uniform(site, a, mask, "the number of a barrier")
        return number, None if b is None else self.uniform(site, b, mask, "the count of a barrier")

    def op_bar_sync(self, site: int, mask: Any, mods: Any, a: Any, b: Any = None) -> Wait:
        """Arrive and wait."""
        yield from self.sync_named(
            site, mask, *self._operands(site, mask, a, b), self._aligned(mods)
        )

    def op_bar_arrive(self, site: int, mask: Any, mods: Any, a: Any, b: Any) -> Wait:
        """Arrive without waiting for other warps."""
        named = self._operands(site, mask, a, b)
        yield from self._come_to_named(site, mask, *named, self._aligned(mods), False)

    # -- votes ------------------------------------------------------------------------------------

    def vote_named(
        self, site: int, mask: Any, number: int, count: int | None, aligned: bool, value: Any
    ) -> Wait:
        """Meet at a named barrier; return in how many threads a predicate holds, and of how many.

        Threads that meet there by `bar.sync` or `bar.arrive` bring no vote: mixing the two in one
        generation has no defined outcome.
        """
        barrier = self.named(number)
        generation = barrier.generation
        votes = barrier.votes.setdefault(generation, {})
        holds = as_lanes(value) != 0
        here = holds if mask is None else holds[mask]
        true, size = votes.get(self, (0, 0))  # votes of other lanes of this warp
        votes[self] = (true + int(here.sum()), size + here.size)
        yield from self.sync_named(site, mask, number, count, aligned)
        barrier.votes.pop(generation - 2, None)
        met = {warp for warp, _ in barrier.previous}
        if barrier.generation == generation + 1 and met != votes.keys():
            text = (
                f"{barrier.name}: bar.red meets bar.sync or bar.arrive in generation {generation}"
            )
            self.report("NAMED_BAR_MISMATCH", site, text, buffer=barrier.name)
        return sum(true for true, _ in votes.values()), sum(all_ for _, all_ in votes.values())

    def op_bar_red(self, site: int, mask: Any, mods: Any, a: Any, c: Any, b: Any = None) -> Wait:
        """Count the threads in which a predicate holds, or tell whether in all or any of them."""
        named = self._operands(site, mask, a, b)
        true, threads = yield from self.vote_named(site, mask, *named, self._aligned(mods), c)
        if mods["op"] == "popc":
            return true
        return int(true == threads if mods["op"] == "and" else true > 0)

    def vote_block(self, site: int, mask: Any, op: str, value: Any) -> Wait:
        """Run `__syncthreads_and` or `__syncthreads_or`: 1 or 0 in all threads."""
        true, threads = yield from self.vote_named(site, mask, 0, None, True, value)
        return int(true == threads if op == "and" else true > 0)
