"""Cluster barriers, proxy fences, setmaxnreg, and addresses in other CTAs of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_hopper.sim.machine.machine import Event
from tvm_hopper.sim.machine.memory import RANK_SHIFT
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.races.clocks import Bundle
from tvm_hopper.sim.races.shadow import ALL_LANES
from tvm_hopper.sim.trips.balance import ARRIVE, WAIT, BarrierFlow


class ClusterBarrier(Event):
    """The barrier of all threads of a cluster."""

    has_parity = False

    def __init__(self, name: str, num_warps: int, members: Sequence[Any] = ()) -> None:
        super().__init__(name)
        self.members = members  # CTAs
        self.generation = 0
        self.arrived: set[Any] = set()
        self.published = Bundle(num_warps)
        self.acquirable = self.published

    @property
    def needed(self) -> int:
        """Warps that make a generation."""
        return sum(len(cta.warps) for cta in self.members)


class OrderOps:
    """Everything of one warp that orders accesses, besides mbarriers and named barriers."""

    blocked_on: tuple[str, Any, int, int] | None
    unfenced: list[Any]
    num_registers: int
    flow: BarrierFlow

    # -- cluster barrier --------------------------------------------------------------------------

    def _cluster_arrive(self, site: int, relaxed: bool) -> None:
        barrier, machine = self.cta.cluster_barrier, self.machine
        if self in barrier.arrived:
            machine.at(
                "NAMED_BAR_MISMATCH", self, site, "barrier.cluster.arrive twice in one generation"
            )
        barrier.arrived.add(self)
        self.flow.add(ARRIVE, barrier)
        self.cluster_generation = barrier.generation
        if not relaxed:
            barrier.published.join(self.release())
        else:  # execution is ordered, memory is not; mbarrier inits were released by their fence
            released = Bundle(machine.num_warps)
            released.narrow.join(self.known_to_any().generic)
            if self.init_release is not None:
                released.generic.join(self.init_release)
            self.bump()
            barrier.published.join(released)
        self._settle_cluster(barrier)

    def _settle_cluster(self, barrier: ClusterBarrier) -> None:
        expected = [w for cta in self.cta.cluster for w in cta.warps if not w.finished]
        if expected and all(w in barrier.arrived for w in expected):
            barrier.generation += 1
            barrier.acquirable, barrier.published = (
                barrier.published,
                Bundle(self.machine.num_warps),
            )
            barrier.arrived = set()
            self.machine.progress += 1
            self.machine.wake(barrier)

    def _cluster_wait(self, site: int) -> Wait:
        self.site = site
        barrier = self.cta.cluster_barrier
        if self.cluster_generation is None:
            self.machine.at(
                "NAMED_BAR_MISMATCH", self, site, "barrier.cluster.wait without an arrive before it"
            )
            return
        self.flow.add(WAIT, barrier)
        while barrier.generation <= self.cluster_generation:
            self.waiting = f"waits the cluster barrier ({len(barrier.arrived)} warps arrived)"
            self.blocked_on = ("cluster", barrier, 0, site)
            yield barrier
        self.blocked_on = None
        self.cluster_generation = None
        self.clock.join(barrier.acquirable)
        self.meet(ALL_LANES, int(barrier.acquirable.generic.epochs[self.index]))
        self.bump()

    def op_cuda_cluster_sync(self, site: int, mask: Any) -> Wait:
        """Arrive on the cluster barrier and wait for it."""
        self._require_full(site, mask, "barrier.cluster.arrive.aligned")
        self._cluster_arrive(site, False)
        yield from self._cluster_wait(site)

    def op_barrier_cluster_arrive(self, site: int, mask: Any, mods: Any) -> None:
        """Arrive on the cluster barrier."""
        if mods.get("aligned"):
            self._require_full(site, mask, "barrier.cluster.arrive.aligned")
        self._cluster_arrive(site, mods.get("sem") == "relaxed")

    def op_barrier_cluster_wait(self, site: int, mask: Any, mods: Any) -> Wait:
        """Wait for the generation that was arrived on."""
        yield from self._cluster_wait(site)

    def _require_full(self, site: int, mask: Any, what: str, exists: bool = False) -> None:
        """Require every lane, or every one that there is.

        `exists`: a block of no whole warps lacks lanes; what spreads a matrix over 32 of them is
        undefined then (PTX ISA 9.1, 9.7.14.5.14: "if any thread in the warp has exited").
        """
        if mask is None:
            return
        if not exists and self.partial is not None and (mask == self.partial).all():
            return
        self.machine.at(
            "WARP_CONVERGENCE", self, site, f"{what} with {int(mask.sum())} of 32 lanes"
        )

    def check_groups(self, site: int, pending: Any) -> int:
        """Return how many groups a wait leaves pending; a negative number means nothing."""
        if int(pending) < 0:
            text = f"{int(pending)} groups: need 0 or more"
            self.machine.at("ILLEGAL_OPERAND", self, site, text)
        return int(pending)

    # -- fences -----------------------------------------------------------------------------------

    def op_fence_proxy(self, site: int, mask: Any, mods: Any) -> None:
        """Let earlier generic accesses be seen by later asynchronous ones."""
        if not mods.get("proxykind", mods.get("proxy", "")).startswith("async") and not mods.get(
            "proxy", ""
        ).startswith("async"):
            self.machine.incomplete(f"fence.proxy.{mods.get('proxykind')}", site)
            return
        space, lanes = mods.get("space", ""), self.lanes_of(mask)
        for who in {lanes, *(part & lanes for part in self.parts if part & lanes)}:
            known, mine = self.knows(who).generic, self.told(who)
            if who != ALL_LANES:  # a fence is of its thread: it covers what these lanes know
                known = known.copy()
                self.lane_order.limit(known, who, self.machine)
            if "global" not in space:
                mine.async_shared.join(known)
            if "shared" not in space:
                mine.async_global.join(known)
        self.bump()

    def op_fence_mbarrier_init(self, site: int, mask: Any, mods: Any) -> None:
        """Publish initialised mbarriers to the cluster."""
        for barrier in self.unfenced:
            barrier.fenced = True
        self.unfenced = []
        self.init_release = self.clock.generic.copy()
        self.bump()

    # -- registers --------------------------------------------------------------------------------

    def op_setmaxnreg(self, site: int, mask: Any, mods: Any, nreg: Any) -> Wait:
        """Give registers to the CTA's pool, or take them (and wait for them)."""
        self.site = site
        target, action, machine = int(nreg), mods["action"], self.machine
        pool = self.cta
        self._require_full(site, mask, "setmaxnreg.sync.aligned")
        if target % 8 or not 24 <= target <= 256:
            machine.at(
                "SETMAXNREG_DIRECTION",
                self,
                site,
                f"setmaxnreg {target}: need 24 to 256, a multiple of 8",
            )
        wrong = target > self.num_registers if action == "dec" else target < self.num_registers
        if wrong:
            machine.at(
                "SETMAXNREG_DIRECTION",
                self,
                site,
                f"setmaxnreg.{action} {target} with {self.num_registers} registers",
            )
        self.setmaxnregs.append((action, target))
        need = (target - self.num_registers) * 32
        while need > pool.free_registers:
            self.waiting = (
                f"waits for {need} registers ({pool.free_registers} free; {target} per thread "
                f"after {self.num_registers})"
            )
            self.blocked_on = ("registers", pool, target, site)
            yield pool.pool
        self.blocked_on = None
        pool.free_registers -= need
        self.num_registers = target
        if need < 0:
            machine.progress += 1
            machine.wake(pool.pool)

    # -- addresses --------------------------------------------------------------------------------

    def op_mapa_u32(self, site: int, mask: Any, mods: Any, a: Any, b: Any) -> Any:
        """Return the address of the same byte in another CTA of the cluster."""
        offset = (a if not isinstance(a, np.ndarray) else a.astype(np.int64)) & ((1 << 24) - 1)
        rank = b.astype(np.int64) if isinstance(b, np.ndarray) else int(b)
        ranks = rank if mask is None or not isinstance(rank, np.ndarray) else rank[mask]
        if int(np.max(ranks)) >= len(self.cta.cluster):
            self.machine.at(
                "OOB_ACCESS",
                self,
                site,
                f"mapa to rank {int(np.max(ranks))} of a cluster of {len(self.cta.cluster)}",
            )
            return a
        return offset | rank << RANK_SHIFT

    def op_mapa(self, site: int, mask: Any, mods: Any, a: Any, b: Any) -> Any:
        """Return the generic address of the same byte in another CTA."""
        return self.op_mapa_u32(site, mask, mods, a, b) | 1 << 40

    def op_getctarank(self, site: int, mask: Any, mods: Any, a: Any) -> Any:
        """Return the rank of the CTA that owns a shared address."""
        return (a >> RANK_SHIFT) & 0xFF
