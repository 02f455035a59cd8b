"""Arrivals that hand out what was pending, and must not complete a phase.

PTX ISA 9.1, 9.7.13.15.13 mbarrier.arrive: one with `.noComplete` "must not cause the mbarrier to
complete its current phase, otherwise the behavior is undefined"; 9.7.13.15.17 pending_count gives
the count "prior to the arrive-on operation from which the state register was obtained".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import LANES, as_lanes

_PENDING_SHIFT = 32  # in a state: the phase below, what was pending above
_FROM_NO_COMPLETE = 1 << 62


class MBarrierStateOps:
    """A part of `Warp`, whose other methods it calls."""

    def op_mbarrier_arrive_no_complete(
        self, site: int, mask: Any, mods: Any, addr: Any, count: Any, state: Any = None
    ) -> np.ndarray:
        """Arrive, where others are still to come; return what was pending before."""
        return self._arrive_no_complete(site, mask, mods, addr, count, False)

    op_mbarrier_arrive_no_complete_sink = op_mbarrier_arrive_no_complete

    def op_mbarrier_arrive_drop_no_complete(
        self, site: int, mask: Any, mods: Any, addr: Any, count: Any, state: Any = None
    ) -> np.ndarray:
        """Arrive so, and leave for all later phases."""
        return self._arrive_no_complete(site, mask, mods, addr, count, True)

    op_mbarrier_arrive_drop_no_complete_sink = op_mbarrier_arrive_drop_no_complete

    def _arrive_no_complete(
        self, site: int, mask: Any, mods: Any, addr: Any, count: Any, drop: bool
    ) -> np.ndarray:
        states = np.zeros(32, np.int64)
        addresses, counts = as_lanes(addr), as_lanes(count)
        before: dict[Any, tuple[int, int]] = {}  # barrier -> phase, pending
        for lane in LANES if mask is None else np.nonzero(mask)[0]:
            barrier = self.barrier_at(site, int(addresses[lane]), 1 << int(lane))
            if barrier is None:
                continue
            phase, pending = before.get(barrier, (barrier.phase, barrier.pending))
            states[lane] = phase | pending << _PENDING_SHIFT | _FROM_NO_COMPLETE
            before[barrier] = phase, max(pending - int(counts[lane]), 0)
        self._arrive_all(site, mask, mods, addr, count, drop=drop)
        for barrier, (phase, _) in before.items():
            if barrier.phase != phase:
                text = f"{barrier.name}: arrive.noComplete completes phase {phase}"
                self.machine.at("ILLEGAL_OPERAND", self, site, text, buffer=barrier.name)
        return states

    def op_mbarrier_pending_count(self, site: int, mask: Any, mods: Any, state: Any) -> np.ndarray:
        """Return what was pending before an arrival with `.noComplete`."""
        states = as_lanes(state).astype(np.int64)
        mine = states if mask is None else states[mask]
        if not ((mine & _FROM_NO_COMPLETE) != 0).all():
            text = "mbarrier.pending_count: need a state of arrive.noComplete"
            self.machine.at("ILLEGAL_OPERAND", self, site, text)
        return states >> _PENDING_SHIFT & 0xFFFFF
