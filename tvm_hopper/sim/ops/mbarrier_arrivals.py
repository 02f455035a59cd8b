"""Arrivals on mbarriers, each with the operands of the lanes that name the barrier.

PTX ISA 9.1, 9.7.13.15.13 mbarrier.arrive: each executing thread arrives on the mbarrier that it
names, for its own count and bytes, and gets the state of before its arrival: opaque, but it tells
the phase that was in progress. One with `.noComplete` "must not cause the mbarrier to complete its
current phase, otherwise the behavior is undefined"; 9.7.13.15.17 pending_count gives the count
"prior to the arrive-on operation from which the state register was obtained".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import LANES, as_lanes
from tvm_hopper.sim.ops.mbarrier import sum_of

_PENDING_SHIFT = 32  # in a state: the phase below, the pending count above
_FROM_NO_COMPLETE = 1 << 62


class MBarrierArrivalOps:
    """Mixin of `Warp`."""

    def op_mbarrier_arrive(
        self,
        site: int,
        mask: Any,
        mods: Any,
        addr: Any,
        count: Any = 1,
        tx_count: Any = None,
        state: Any = None,
    ) -> np.ndarray:
        """Arrive with a count; with `.expect_tx` once, after raising the tx-count.

        TVM calls the bytes `count` where a state is returned; PTX has `tx_count` in all forms, and
        the arrival itself counts for 1 (9.7.13.15.13).
        """
        phases, tx = np.zeros(32, np.int64), None
        for barrier, lanes in self.barriers_at(site, mask, addr):
            phases[lanes] = barrier.phase
        if "expect_tx" in mods["ptx_name"]:
            tx, count = count if tx_count is None else tx_count, 1
        self._arrive_all(site, mask, mods, addr, count, tx)
        return phases

    def op_mbarrier_expect_tx(
        self, site: int, mask: Any, mods: Any, addr: Any, tx_count: Any
    ) -> None:
        """Raise the tx-count."""
        for barrier, lanes in self.barriers_at(site, mask, addr):
            self._expect(barrier, sum_of(tx_count, lanes))

    def op_mbarrier_complete_tx(
        self, site: int, mask: Any, mods: Any, addr: Any, tx_count: Any
    ) -> None:
        """Lower the tx-count by hand."""
        for barrier, lanes in self.barriers_at(site, mask, addr):
            barrier.tx -= sum_of(tx_count, lanes)
            self.machine.progress += 1
            self.settle(barrier)

    def op_mbarrier_arrive_no_complete(
        self, site: int, mask: Any, mods: Any, addr: Any, count: Any, state: Any = None
    ) -> np.ndarray:
        """Arrive, where others are still to come; return the pending count before."""
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
        self._arrive_all(site, mask, mods, addr, count)
        for barrier, (phase, _) in before.items():
            if barrier.phase != phase:
                text = f"{barrier.name}: arrive.noComplete completes phase {phase}"
                self.report("ILLEGAL_OPERAND", site, text, buffer=barrier.name)
        return states

    def op_mbarrier_pending_count(self, site: int, mask: Any, mods: Any, state: Any) -> np.ndarray:
        """Return the pending count before an arrival with `.noComplete`."""
        states = as_lanes(state).astype(np.int64)
        mine = states if mask is None else states[mask]
        if not ((mine & _FROM_NO_COMPLETE) != 0).all():
            text = "mbarrier.pending_count: need a state of arrive.noComplete"
            self.report("ILLEGAL_OPERAND", site, text)
        return states >> _PENDING_SHIFT & 0xFFFFF
