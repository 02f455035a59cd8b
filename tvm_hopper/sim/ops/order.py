"""Proxy fences, setmaxnreg, generic addresses, and addresses in other CTAs of the cluster.

PTX ISA, 9.7.9.19 isspacep, 9.7.9.20 cvta.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import as_lanes, to_shared
from tvm_hopper.sim.machine.memory import (
    RANK_SHIFT,
    SHARED,
    global_number,
    shared_offset,
    shared_rank,
)
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.races.shadow import ALL_LANES


class OrderOps:
    """One warp's proxy fences, register counts and other CTAs' addresses; a part of `Warp`."""

    blocked_on: tuple[str, Any, int, int] | None
    num_registers: int

    def _require_full(self, site: int, mask: Any, instruction: str, exists: bool = False) -> None:
        """Require every lane, or every one that there is.

        `exists`: a block of no whole warps lacks lanes; an instruction that spreads a matrix over
        32 is undefined then (PTX ISA 9.1, 9.7.14.5.14: "if any thread in the warp has exited").
        """
        self.meets(site, mask, instruction)
        if mask is None:
            return
        if not exists and self.partial is not None and (mask == self.partial).all():
            return
        self.report("WARP_CONVERGENCE", site, f"{instruction} with {int(mask.sum())} of 32 lanes")

    def check_groups(self, site: int, pending: Any) -> int:
        """Return how many groups a wait leaves pending; a negative number means nothing."""
        if int(pending) < 0:
            text = f"{int(pending)} groups: need 0 or more"
            self.report("ILLEGAL_OPERAND", site, text)
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
        for part in self.parts_of(lanes):
            known, mine = self.knows(part).generic, self.bundle_of(part)
            if part != ALL_LANES:  # a fence is of its thread: it covers what these lanes know
                known = known.copy()
                self.lane_order.limit(known, part, self.machine)
            if "global" not in space:
                mine.async_shared.join(known)
            if "shared" not in space:
                mine.async_global.join(known)
        self.bump()

    # -- registers --------------------------------------------------------------------------------

    def op_setmaxnreg(self, site: int, mask: Any, mods: Any, nreg: Any) -> Wait:
        """Give registers to the CTA's pool, or take them (and wait for them)."""
        self.site = site
        target, action, machine = int(nreg), mods["action"], self.machine
        pool = self.cta
        self._require_full(site, mask, "setmaxnreg.sync.aligned")
        if target % 8 or not 24 <= target <= 256:
            text = f"setmaxnreg {target}: need 24 to 256, a multiple of 8"
            self.report("SETMAXNREG_DIRECTION", site, text)
        wrong = target > self.num_registers if action == "dec" else target < self.num_registers
        if wrong:
            text = f"setmaxnreg.{action} {target} with {self.num_registers} registers"
            self.report("SETMAXNREG_DIRECTION", site, text)
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
        offset = shared_offset(a.astype(np.int64) if isinstance(a, np.ndarray) else int(a))
        rank = b.astype(np.int64) if isinstance(b, np.ndarray) else int(b)
        ranks = rank if mask is None or not isinstance(rank, np.ndarray) else rank[mask]
        if int(np.max(ranks)) >= len(self.cta.cluster):
            text = f"mapa to rank {int(np.max(ranks))} of a cluster of {len(self.cta.cluster)}"
            self.report("OOB_ACCESS", site, text)
            return a
        return offset + (rank << RANK_SHIFT)

    def op_mapa(self, site: int, mask: Any, mods: Any, a: Any, b: Any) -> Any:
        """Return the generic address of the same byte in another CTA."""
        return self.op_mapa_u32(site, mask, mods, a, b) | 1 << 40

    def op_getctarank(self, site: int, mask: Any, mods: Any, a: Any) -> Any:
        """Return the rank of the CTA that owns a shared address."""
        return shared_rank(a)


class GenericAddressOps:
    """Mixin of `Warp`."""

    def op_cvta(self, site: int, mask: Any, mods: Any, ptr: Any) -> Any:
        """Convert a generic address to one of a space (`cvta.to`)."""
        return ptr if mods["space"] == "global" else to_shared(ptr)

    def op_cvta_generic(self, site: int, mask: Any, mods: Any, a: Any) -> Any:
        """Convert an address of a space to a generic one."""
        if mods["space"] == "global":
            return a
        return as_lanes(a).astype(np.int64) | SHARED

    def op_isspacep(self, site: int, mask: Any, mods: Any, a: Any) -> Any:
        """Return whether a generic address lies in a space."""
        places = as_lanes(a).astype(np.int64)
        if mods["space"] == "global":
            return global_number(places) != 0
        shared = (global_number(places) == 0) & (places & SHARED != 0)
        if mods["space"] == "shared::cluster":
            return shared
        return shared & (shared_rank(places) == self.cta.rank)

    def in_own_window(self, site: int, mask: Any, address: Any) -> None:
        """Report an address of another CTA where an instruction takes it for this one's.

        An access through `.shared::cta` (or `.shared`) of what lies outside of that window is
        undefined (PTX ISA, 5.1.7 Shared State Space).
        """
        places = as_lanes(address).astype(np.int64)
        if mask is not None:
            places = places[mask]
        ranks = shared_rank(places)
        other = (global_number(places) == 0) & (ranks != self.cta.rank)
        if other.any():
            rank = int(ranks[np.argmax(other)])
            text = (
                f"an address of the CTA with rank {rank} in the cluster, which is outside of "
                f".shared::cta of {self.cta.label}; need .shared::cluster"
            )
            self.report("OOB_ACCESS", site, text, key=(site, "window"))
