"""Arrivals on mbarriers, each with the operands of the lanes that name the barrier.

PTX ISA 9.1, 9.7.13.15.13 mbarrier.arrive: each executing thread arrives on the mbarrier that it
names, for its own count and bytes, and gets the state of before its arrival: opaque, but it tells
the phase that was in progress.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.ops.mbarrier import sum_of


class MBarrierArrivalOps:
    """A part of `Warp`, whose other methods it calls."""

    def _phases(self, site: int, mask: Any, addr: Any) -> np.ndarray:
        """Return the phase in progress of the barrier that each lane names: its state token."""
        phases = np.zeros(32, np.int64)
        for barrier, lanes in self.barriers_at(site, mask, addr):
            phases[lanes] = barrier.phase
        return phases

    def op_mbarrier_arrive(
        self, site: int, mask: Any, mods: Any, addr: Any, count: Any = 1, state: Any = None
    ) -> np.ndarray:
        """Arrive with a count."""
        phases = self._phases(site, mask, addr)
        self._arrive_all(site, mask, mods, addr, count)
        return phases

    op_mbarrier_arrive_count = op_mbarrier_arrive

    def op_mbarrier_arrive_drop(
        self, site: int, mask: Any, mods: Any, addr: Any, count: Any = 1, state: Any = None
    ) -> np.ndarray:
        """Arrive, and leave for all later phases."""
        phases = self._phases(site, mask, addr)
        self._arrive_all(site, mask, mods, addr, count, drop=True)
        return phases

    op_mbarrier_arrive_drop_count = op_mbarrier_arrive_drop

    def op_mbarrier_arrive_expect_tx(
        self,
        site: int,
        mask: Any,
        mods: Any,
        addr: Any,
        tx_count: Any = 0,
        count: Any = None,
        state: Any = None,
    ) -> np.ndarray:
        """Raise the tx-count, then arrive once.

        TVM calls the operand of the forms that return a state `count`; PTX has `tx_count` in all,
        and the arrival itself counts for 1 (9.7.13.15.13).
        """
        phases = self._phases(site, mask, addr)
        self._arrive_all(site, mask, mods, addr, 1, tx=tx_count if count is None else count)
        return phases

    def op_mbarrier_arrive_drop_expect_tx(
        self,
        site: int,
        mask: Any,
        mods: Any,
        addr: Any,
        tx_count: Any = 0,
        count: Any = None,
        state: Any = None,
    ) -> np.ndarray:
        """Raise the tx-count, arrive once and leave; operands as for the arrival that stays."""
        phases, tx = self._phases(site, mask, addr), tx_count if count is None else count
        self._arrive_all(site, mask, mods, addr, 1, tx=tx, drop=True)
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
