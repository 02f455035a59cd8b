"""The barrier of a cluster: `barrier.cluster.arrive` and `.wait` (PTX ISA 9.1, 9.7.13.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm_hopper.sim.loop_cuts.balance import ARRIVE, WAIT, BarrierFlow
from tvm_hopper.sim.machine.machine import Meeting
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.races.clocks import Bundle
from tvm_hopper.sim.races.shadow import ALL_LANES


class ClusterBarrier(Meeting):
    """The barrier of all threads of a cluster.

    - `published` (Bundle): knowledge that arrivals of the current generation publish to the
      cluster.
    - `near` (dict): knowledge for their own CTA only: relaxed arrivals after a fence of CTA scope.
    - `acquirable`, `acquirable_near` (Bundle and dict): the same of the generation before.
    """

    def __init__(self, machine: Any, members: Sequence[Any]) -> None:
        super().__init__("cluster barrier", machine)
        self.members = members  # CTAs
        self.arrived: set[Any] = set()
        self.near: dict[Any, Bundle] = {}
        self.acquirable_near = self.near

    @property
    def needed(self) -> int:
        """Warps that make a generation."""
        return sum(len(cta.warps) for cta in self.members)

    def complete(self) -> None:
        """Begin the next generation."""
        self.acquirable_near, self.near = self.near, {}
        self.arrived = set()
        super().complete()


class ClusterBarrierOps:
    """One warp's operations on the barrier of its cluster; a part of `Warp`."""

    blocked_on: tuple[str, Any, int, int] | None
    flow: BarrierFlow

    def _cluster_arrive(self, site: int, firm: int, relaxed: int) -> None:
        """Mark the arrival of this warp: of lanes that release, and of lanes that do not."""
        barrier = self.cta.cluster_barrier
        if self in barrier.arrived:
            self.report(
                "NAMED_BAR_MISMATCH", site, "barrier.cluster.arrive twice in one generation"
            )
        barrier.arrived.add(self)
        self.flow.add(ARRIVE, barrier)
        self.cluster_generation = barrier.generation
        if firm:
            barrier.published.join(self.release(self.whole(firm)))
        if relaxed:
            self._arrive_relaxed(barrier, self.whole(relaxed))
        self._settle_cluster(barrier)

    def _arrive_relaxed(self, barrier: ClusterBarrier, lanes: int) -> None:
        """Order execution, and only the memory that earlier fences release.

        "`.relaxed` [...] specifies that there are no memory ordering and visibility guarantees
        provided for the memory accesses performed prior to `barrier.cluster.arrive`"; the same
        section has `fence.cluster.acq_rel` before it, as the use of a relaxed arrival.
        """
        cluster_warps = self.machine.cluster_warps
        released = Bundle(cluster_warps)
        released.narrow.join(self.known_to_any(lanes).generic)
        for scope, bundle in self.fenced_before(lanes):
            if scope == "cta":
                barrier.near.setdefault(self.cta, Bundle(cluster_warps)).join(bundle)
            else:
                released.join(bundle)
        self.bump()
        barrier.published.join(released)

    def _settle_cluster(self, barrier: ClusterBarrier) -> None:
        expected = [w for cta in self.cta.cluster for w in cta.warps if not w.finished]
        if expected and all(w in barrier.arrived for w in expected):
            barrier.complete()

    def _cluster_wait(self, site: int, lanes: int, generation: int | None) -> Wait:
        """Wait for a generation; the waiting lanes learn the knowledge of its arrivals."""
        self.site = site
        barrier = self.cta.cluster_barrier
        if generation is None:
            self.report(
                "NAMED_BAR_MISMATCH", site, "barrier.cluster.wait without an arrive before it"
            )
            return
        while barrier.generation <= generation:
            self.waiting = f"waits the cluster barrier ({len(barrier.arrived)} warps arrived)"
            self.blocked_on = ("cluster", barrier, 0, site)
            yield barrier
        self.blocked_on = None
        near = barrier.acquirable_near.get(self.cta)
        for bundle in (barrier.acquirable, *([near] if near is not None else [])):
            self.learn_from(lanes, bundle)

    def _generation_arrived_on(self) -> int | None:
        """Return the generation that a wait of the whole warp is for."""
        self.flow.add(WAIT, self.cta.cluster_barrier)
        generation, self.cluster_generation = self.cluster_generation, None
        return generation

    def op_cuda_cluster_sync(self, site: int, mask: Any) -> Wait:
        """Arrive on the cluster barrier and wait for it."""
        self._require_full(site, mask, "barrier.cluster.arrive.aligned")
        self._cluster_arrive(site, self.lanes_of(mask), 0)
        yield from self._cluster_wait(site, self.lanes_of(mask), self._generation_arrived_on())

    def op_barrier_cluster_arrive(self, site: int, mask: Any, mods: Any) -> Wait:
        """Arrive on the cluster barrier: its warp does, once all its lanes have."""
        relaxed, lanes = mods.get("sem") == "relaxed", self.lanes_of(mask)
        self.meets(site, mask, "barrier.cluster.arrive")
        if mods.get("aligned"):
            self._require_full(site, mask, "barrier.cluster.arrive.aligned")
        elif lanes != ALL_LANES:
            name = "barrier.cluster.arrive"
            meeting, first = yield from self.gather_lanes(
                site, mask, name, ALL_LANES, name, relaxed
            )
            if first:
                self._cluster_arrive(site, meeting.bringing(False), meeting.bringing(True))
            return
        self._cluster_arrive(site, *((0, lanes) if relaxed else (lanes, 0)))

    def op_barrier_cluster_wait(self, site: int, mask: Any, mods: Any) -> Wait:
        """Wait for the generation that was arrived on, and for the other lanes of the warp."""
        lanes = self.lanes_of(mask)
        self.meets(site, mask, "barrier.cluster.wait")
        if mods.get("aligned"):
            self._require_full(site, mask, "barrier.cluster.wait.aligned")
        elif lanes != ALL_LANES:
            name = "barrier.cluster.wait"
            meeting, first = yield from self.gather_lanes(site, mask, name, ALL_LANES, name)
            if first:
                meeting.generation = self._generation_arrived_on()
            yield from self._cluster_wait(site, self.whole(meeting.lanes), meeting.generation)
            return
        yield from self._cluster_wait(site, lanes, self._generation_arrived_on())
