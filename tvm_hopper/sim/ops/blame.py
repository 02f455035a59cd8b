"""At a deadlock: which rule of mbarriers was broken before, if that is evident."""

from __future__ import annotations

from typing import Any

from tvm_hopper.sim.tir import slot_of


class BlameOps:
    """Explains why a warp is blocked; a part of `Warp`."""

    blocked_on: tuple[str, Any, int, int] | None
    roles: set[str]
    it: tuple[int, ...]

    def _mbarrier(self) -> tuple[Any, str, str]:
        """Return the mbarrier that this warp waits for, or None; its name; full or empty."""
        if self.blocked_on is None or self.blocked_on[0] != "mbarrier":
            return None, "", ""
        _, barrier, _, site = self.blocked_on
        kind = "full" if barrier.filled else "empty" if "producer" in self.roles else ""
        whole, inside = barrier.cta.shared.name_of(barrier.offset)
        node = self.machine.program.statements[site] if site else None
        slot = slot_of(node, inside) if node is not None else None
        if slot is None or barrier.stem != whole:  # it has a separate name
            return barrier, barrier.name, kind
        of = "" if barrier.cta is self.cta else f" of {barrier.cta.label}"
        return barrier, f"{kind or 'mbarrier'}[{slot}] (byte {inside} of {whole}){of}", kind

    def why_mbarrier(self) -> str:
        """Name the mbarrier and iteration that this warp waits for, and the missing arrivals."""
        barrier, name, _ = self._mbarrier()
        if barrier is None:
            return ""
        loops = f" in iteration {', '.join(map(str, self.it))}" if self.it else ""
        text = f"waits for {name}{loops}: phase {barrier.phase} of it has "
        text += f"{barrier.expected - barrier.pending} of {barrier.expected} arrivals"
        if barrier.tx:
            more = "to come" if barrier.tx > 0 else "more than were expected"
            text += f" and {abs(barrier.tx)} bytes {more}"
        return f"{text}; parity {self.blocked_on[2]}" if self.blocked_on is not None else text

    def suspicion(self) -> int:
        """Rank how likely the event that this warp waits for is the error; 0: most likely."""
        barrier, _, _ = self._mbarrier()
        if barrier is None:
            return 3
        if barrier.tx < 0 or (barrier.tx and not barrier.pending):
            return 0
        return 1 if 0 < barrier.pending < barrier.expected else 2

    def way_out(self) -> str:
        """Return a fix of a deadlock that begins at this wait, or an empty string."""
        barrier, name, kind = self._mbarrier()
        if barrier is None:
            return ""
        if barrier.tx < 0:
            return f"announce the bytes: mbarrier.arrive.expect_tx on {name} before its copies"
        if barrier.tx and not barrier.pending:
            return f"expect on {name} exactly the bytes that its copies deliver"
        here = barrier.expected - barrier.pending
        text = f"{barrier.pending} of {barrier.expected} arrivals on {name} are missing: "
        if here:
            return text + "let each of its threads arrive, or lower the count of its init"
        if kind == "full":
            return text + "let the producer arrive (and copy) for this iteration"
        return text + "let the readers of the slot arrive on it for this iteration"

    def blame(self) -> None:
        """At a deadlock: name the broken mbarrier rule after this wait, if one is evident."""
        if self.blocked_on is None or self.blocked_on[0] != "mbarrier":
            return
        _, barrier, parity, site = self.blocked_on
        more: dict[str, Any] = {"buffer": barrier.name, "key": (site, barrier.name)}
        if barrier.pending == 0 and barrier.tx:
            text = (
                f"{barrier.name} phase {barrier.phase}: expected {barrier.expected_bytes} B, "
                f"copies delivered {barrier.delivered_bytes} B; the phase cannot complete"
            )
            self.report("MBAR_TX_MISMATCH", site, text, **more)
        fresh = barrier.phase == 0 and parity == 0 and barrier.pending == barrier.expected
        fresh = fresh and id(barrier) not in self.observed
        if fresh and site in self.machine.program.acquire_sites:
            text = (
                f"{barrier.name}: waits parity 0 on a fresh barrier, which blocks; a slot that is "
                "free at the start is acquired with parity 1"
            )
            self.report("MBAR_PHASE_ALIAS", site, text, **more)
        elif (before := self.observed.get(id(barrier))) is not None and before.stale:
            text = (
                f"{barrier.name}: an earlier wait for parity {before.parity} passed on phase "
                f"{before.phase}, so that this one (parity {parity}) is out of step with phase "
                f"{barrier.phase}"
            )
            self.report("MBAR_PHASE_ALIAS", site, text, **more)
