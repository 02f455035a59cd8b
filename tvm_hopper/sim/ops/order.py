"""Cluster barriers, fences, setmaxnreg, remote addresses, and PTX loads, stores and atomics."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import LANES, as_lanes, one
from tvm_hopper.sim.machine.machine import Event
from tvm_hopper.sim.machine.memory import RANK_SHIFT
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.ops.ptx_types import DTYPE_OF
from tvm_hopper.sim.races.clocks import Bundle
from tvm_hopper.sim.races.shadow import ALL_LANES
from tvm_hopper.sim.tir import numpy_dtype


class ClusterBarrier(Event):
    """The barrier of all threads of a cluster."""

    def __init__(self, name: str, num_warps: int) -> None:
        super().__init__(name)
        self.generation = 0
        self.arrived: set[Any] = set()
        self.published = Bundle(num_warps)
        self.acquirable = self.published


class OrderOps:
    """Everything of one warp that orders accesses, besides mbarriers and named barriers."""

    blocked_on: tuple[str, Any, int, int] | None
    unfenced: list[Any]
    fence_snapshot: Bundle | None
    pending_acquire: Bundle | None
    num_registers: int

    # -- cluster barrier --------------------------------------------------------------------------

    def _cluster_arrive(self, site: int, relaxed: bool) -> None:
        barrier, machine = self.cta.cluster_barrier, self.machine
        if self in barrier.arrived:
            machine.at(
                "NAMED_BAR_MISMATCH", self, site, "barrier.cluster.arrive twice in one generation"
            )
        barrier.arrived.add(self)
        self.cluster_generation = barrier.generation
        if not relaxed:
            barrier.published.join(self.release())
        else:  # execution is ordered, memory is not; mbarrier inits were released by their fence
            released = Bundle(machine.num_warps)
            released.narrow.join(self.clock.generic)
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
        while barrier.generation <= self.cluster_generation:
            self.waiting = f"waits the cluster barrier ({len(barrier.arrived)} warps arrived)"
            self.blocked_on = ("cluster", barrier, 0, site)
            yield barrier
        self.blocked_on = None
        self.cluster_generation = None
        self.clock.join(barrier.acquirable)
        self.lane_order.learn(ALL_LANES, int(barrier.acquirable.generic.epochs[self.index]))
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

    def _require_full(self, site: int, mask: Any, what: str) -> None:
        if mask is None or (self.partial is not None and (mask == self.partial).all()):
            return
        self.machine.at(
            "WARP_CONVERGENCE", self, site, f"{what} with {int(mask.sum())} of 32 lanes"
        )

    # -- fences -----------------------------------------------------------------------------------

    def op_fence_proxy(self, site: int, mask: Any, mods: Any) -> None:
        """Let earlier generic accesses be seen by later asynchronous ones."""
        if not mods.get("proxykind", mods.get("proxy", "")).startswith("async") and not mods.get(
            "proxy", ""
        ).startswith("async"):
            self.machine.incomplete(f"fence.proxy.{mods.get('proxykind')}", site)
            return
        space, known, lanes = mods.get("space", ""), self.clock.generic, self.lanes_of(mask)
        if lanes != ALL_LANES:  # a fence is of its thread: it covers what these lanes know
            known = known.copy()
            self.lane_order.limit(known, lanes, self.machine)
        if "global" not in space:
            self.clock.async_shared.join(known)
        if "shared" not in space:
            self.clock.async_global.join(known)
        self.bump()

    def op_fence_mbarrier_init(self, site: int, mask: Any, mods: Any) -> None:
        """Publish initialised mbarriers to the cluster."""
        for barrier in self.unfenced:
            barrier.fenced = True
        self.unfenced = []
        self.init_release = self.clock.generic.copy()
        self.bump()

    def op_fence(self, site: int, mask: Any, mods: Any) -> None:
        """Order earlier and later accesses around relaxed atomics."""
        if self.pending_acquire is not None:
            self.clock.join(self.pending_acquire)
            self.pending_acquire = None
        self.fence_snapshot = self.release(self.lanes_of(mask))

    def op_cuda_thread_fence(self, site: int, mask: Any) -> None:
        """Run `__threadfence`."""
        self.op_fence(site, mask, {})

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

    # -- loads, stores, atomics -------------------------------------------------------------------

    def _type(self, mods: Any) -> np.dtype:
        return numpy_dtype(DTYPE_OF[mods["type"]])

    def op_ld(self, site: int, mask: Any, mods: Any, addr: Any, cache_policy: Any = None) -> Any:
        """Load; `.acquire` learns what was released at the address."""
        sem = mods.get("sem", "")
        if sem in ("acquire", "relaxed"):
            return self._ordered(site, mask, "load", addr, 0, self._type(mods), mods)
        return self.load(site, mask, addr, 0, self._type(mods), 1, 1)

    def op_st(
        self, site: int, mask: Any, mods: Any, addr: Any, value: Any, cache_policy: Any = None
    ) -> None:
        """Store; `.release` publishes at the address."""
        sem = mods.get("sem", "")
        if sem in ("release", "relaxed"):
            self._ordered(site, mask, "store", addr, value, self._type(mods), mods)
        else:
            self.store(site, mask, as_lanes(addr), 0, value, self._type(mods), 1, 1)

    def _ordered(
        self,
        site: int,
        mask: Any,
        op: str,
        addr: Any,
        value: Any,
        dtype: np.dtype,
        mods: Any,
    ) -> Any:
        """Access global memory with memory order; relaxed ones work with fences around them."""
        sem, scope = mods.get("sem") or "relaxed", mods.get("scope") or "gpu"
        addresses = as_lanes(addr)
        places = {int(addresses[lane]) for lane in (LANES if mask is None else np.nonzero(mask)[0])}
        if sem == "relaxed" and op != "store":
            if self.pending_acquire is None:
                self.pending_acquire = Bundle(self.machine.num_warps)
            for place in places:
                self.acquire_at(place, scope, self.pending_acquire)
        if op == "load":
            result = self.atomic(site, mask, "add", addr, dtype.type(0), dtype, sem, scope)
        else:
            kind = "exch" if op == "store" else op
            result = self.atomic(site, mask, kind, addr, value, dtype, sem, scope)
        if sem == "relaxed" and op != "load" and self.fence_snapshot is not None:
            for place in places:
                self.release_at(place, scope, self.fence_snapshot)
        return result

    def op_atom(
        self, site: int, mask: Any, mods: Any, addr: Any, value: Any, cache_policy: Any = None
    ) -> Any:
        """Read-modify-write and return the value before."""
        op = mods.get("op") or "exch"
        return self._ordered(site, mask, op, addr, value, self._type(mods), mods)

    def op_atom_cas(
        self, site: int, mask: Any, mods: Any, addr: Any, compare: Any, value: Any
    ) -> Any:
        """Compare and swap."""
        sem = mods.get("sem") or "relaxed"
        scope = mods.get("scope") or "gpu"
        return self.atomic(
            site, mask, "cas", addr, value, self._type(mods), sem, scope, compare=compare
        )

    def op_red(
        self, site: int, mask: Any, mods: Any, addr: Any, value: Any, cache_policy: Any = None
    ) -> None:
        """Read-modify-write without a result."""
        self.op_atom(site, mask, mods, addr, value)

    def op_mov(self, site: int, mask: Any, mods: Any, a: Any) -> Any:
        """Copy a register; the vector forms have names of their own."""
        return a

    def op_elect_sync(self, site: int, mask: Any, mods: Any, membermask: Any = None) -> Any:
        """Return one lane's number and a predicate."""
        chosen = self.elect(site, mask)
        return int(np.argmax(chosen)), chosen

    def op_activemask(self, site: int, mask: Any, mods: Any) -> int:
        """Return the active lanes as bits."""
        return self.activemask(mask)

    def op_shfl_sync(
        self, site: int, mask: Any, mods: Any, a: Any, b: Any, c: Any, membermask: Any = None
    ) -> Any:
        """Exchange values between lanes."""
        mode = mods.get("mode", "idx")
        width = 32 - (one(c, mask) >> 8 & 0x1F)
        lane = as_lanes(b).astype(np.int64)
        if mode == "idx":
            return self.shuffle(site, mask, a, lane, width)
        if mode == "up":
            return self.shuffle_up(site, mask, a, lane, width)
        if mode == "down":
            return self.shuffle_down(site, mask, a, lane, width)
        return as_lanes(a)[LANES ^ lane]
