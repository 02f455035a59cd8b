"""At a deadlock: which rule of mbarriers was broken before, if that is evident."""

from __future__ import annotations

from typing import Any


class BlameOps:
    """What a blocked warp has done wrong; a part of `Warp`."""

    blocked_on: tuple[str, Any, int, int] | None

    def blame(self) -> None:
        """At a deadlock: name the broken mbarrier rule behind this wait, if one is evident."""
        if self.blocked_on is None or self.blocked_on[0] != "mbarrier":
            return
        _, barrier, parity, site = self.blocked_on
        more: dict[str, Any] = {"buffer": barrier.name, "key": (site, barrier.name)}
        if barrier.pending == 0 and barrier.tx:
            self.machine.at(
                "MBAR_TX_MISMATCH",
                self,
                site,
                f"{barrier.name} phase {barrier.phase}: expected {barrier.expected_bytes} B, "
                f"copies delivered {barrier.delivered_bytes} B; the phase cannot complete",
                **more,
            )
        fresh = barrier.phase == 0 and parity == 0 and barrier.pending == barrier.expected
        fresh = fresh and id(barrier) not in self.observed
        if fresh and site in self.machine.program.acquire_sites:
            self.machine.at(
                "MBAR_PHASE_ALIAS",
                self,
                site,
                f"{barrier.name}: waits parity 0 on a fresh barrier, which blocks; a slot that is "
                "free at the start is acquired with parity 1",
                **more,
            )
        elif (before := self.observed.get(id(barrier))) is not None and before.stale:
            self.machine.at(
                "MBAR_PHASE_ALIAS",
                self,
                site,
                f"{barrier.name}: an earlier wait for parity {before.parity} passed on phase "
                f"{before.phase}, so that this one (parity {parity}) is out of step with phase "
                f"{barrier.phase}",
                **more,
            )
