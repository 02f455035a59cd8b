"""Fences before relaxed writes and after relaxed reads (PTX ISA 9.1, 9.7.13.4, fence).

A release pattern is a fence, then a strong write in program order; an acquire pattern is a strong
read, then a fence (PTX ISA, memory consistency model, "Release and Acquire Patterns").  Such writes
are relaxed atomics, stores and arrivals; such reads are relaxed atomics, loads and waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm_hopper.sim.races.clocks import Bundle
from tvm_hopper.sim.races.lane_order import LaneOrder
from tvm_hopper.sim.races.shadow import ALL_LANES

SCOPES = ("cta", "cluster", "gpu", "sys")


def narrower(one: str, other: str) -> str:
    """Return the narrower of two scopes."""
    return min(one, other, key=SCOPES.index)


class FenceOps:
    """The fences of one warp that order its memory accesses; a part of `Warp`."""

    def init_fences(self) -> None:
        """Begin without a fence."""
        # By the lanes that fenced and the scope: their knowledge at the fence, and its lanes.
        self.fences: dict[tuple[int, str], tuple[Bundle, LaneOrder]] = {}
        # By the reading lanes, and the scope of a later fence: knowledge of relaxed reads.
        self.pending: dict[tuple[int, str], Bundle] = {}
        self.unfenced: list[Any] = []  # mbarriers initialised since the last fence for that

    # -- patterns ---------------------------------------------------------------------------------

    def fenced_before(self, lanes: int) -> Iterator[tuple[str, Bundle]]:
        """Yield the knowledge that fences let a relaxed write publish, each with its scope."""
        for (part, scope), (known, order) in self.fences.items():
            if part & lanes:
                bundle = known.copy()
                order.limit_all(bundle, self.whole(part & lanes), self.machine)
                yield scope, bundle

    def fenced_by(self, lanes: int, scope: str) -> Bundle:
        """Return the knowledge of a fence by some lanes, for updates."""
        key = lanes, scope
        if key not in self.fences:
            self.fences[key] = Bundle(self.machine.cluster_warps), self.lane_order.copy()
        return self.fences[key][0]

    def pending_reads(self, lanes: int) -> Iterator[tuple[str, Bundle]]:
        """Yield the bundles that a relaxed read updates, by the scope of a later fence."""
        for scope in SCOPES[:3]:
            if (lanes, scope) not in self.pending:
                self.pending[lanes, scope] = Bundle(self.machine.cluster_warps)
            yield scope, self.pending[lanes, scope]

    def publish_relaxed(self, barrier: Any, scope: str, lanes: int) -> None:
        """Publish on an mbarrier the knowledge that fences before a relaxed arrival release."""
        for fence, bundle in self.fenced_before(lanes):
            wide = narrower(scope, fence) != "cta"
            place = "near" if barrier.cta is self.cta else "cluster" if wide else "narrow"
            barrier.slot.publish(place, bundle)

    # -- instructions -----------------------------------------------------------------------------

    def op_fence(self, site: int, mask: Any, mods: Any) -> None:
        """Order earlier and later accesses around relaxed ones."""
        sem, scope = mods.get("sem") or "acq_rel", mods.get("scope") or "gpu"
        lanes = self.lanes_of(mask)
        if sem != "release":
            for (part, fence), seen in list(self.pending.items()):
                if part & lanes and fence == narrower(scope, "gpu"):
                    learners = self.whole(part & lanes)
                    self.bundle_of(learners).join(seen)
                    self.lane_order.learn(learners, int(seen.generic.epochs[self.index]))
        strong = sem == "sc" and scope in ("gpu", "sys")
        if strong:
            for part, bundle in [(ALL_LANES, self.clock), *self.parts.items()]:
                if part & lanes and bundle.seen is not None:
                    self.bundle_of(part & lanes).join(bundle.seen)
        if sem == "acquire":
            self.bump()
            return
        order = self.lane_order.copy()
        for part in self.parts_of(lanes):
            self.fences[part, scope] = self.knows(part).copy(), order
        known = self.release(lanes)
        if strong:
            self.bundle_of(lanes).fence(known)

    def op_cuda_thread_fence(self, site: int, mask: Any) -> None:
        """Run `__threadfence`: `membar.gl`, which is `fence.sc.gpu` (PTX ISA, membar)."""
        self.op_fence(site, mask, {"sem": "sc", "scope": "gpu"})

    def op_fence_mbarrier_init(self, site: int, mask: Any, mods: Any) -> None:
        """Release the mbarriers that the executing lanes have initialised, and nothing else.

        "the synchronizing effect of the fence only applies to the prior mbarrier.init operations
        executed by the same thread on mbarrier objects in .shared::cta state space" (membar, fence)
        """
        here, others = self.lanes_of(mask), []
        for barrier in self.unfenced:
            access = barrier.init_access
            if access is not None and access.lanes & ~here:
                others.append(barrier)
                continue
            barrier.fenced = True
            if access is not None:  # None: races are not looked for
                if access.bit < 0:
                    access.bit = self.machine.new_access_event()
                known = self.fenced_by(access.lanes, "cluster")
                known.generic.events |= 1 << access.bit
        self.unfenced = others
        self.bump()
