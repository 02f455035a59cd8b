"""Generic addresses and those of a state space (PTX ISA, 9.7.9.19 isspacep, 9.7.9.20 cvta)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import as_lanes, to_shared
from tvm_hopper.sim.machine.memory import SHARED, global_number, shared_rank


class GenericAddressOps:
    """A part of `Warp`, whose other methods it calls."""

    def op_cvta(self, site: int, mask: Any, mods: Any, ptr: Any) -> Any:
        """Convert a generic address to one of a space (`cvta.to`)."""
        return ptr if mods["space"] == "global" else to_shared(ptr)

    def op_cvta_generic(self, site: int, mask: Any, mods: Any, a: Any) -> Any:
        """Convert an address of a space to a generic one."""
        if mods["space"] == "global":
            return a
        return as_lanes(a).astype(np.int64) | SHARED

    def op_isspacep(self, site: int, mask: Any, mods: Any, a: Any) -> Any:
        """Tell whether a generic address lies in a space."""
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
            self.report(
                "OOB_ACCESS",
                site,
                f"an address of the CTA with rank {rank} in the cluster, which is outside of "
                f".shared::cta of {self.cta.label}; need .shared::cluster",
                key=(site, "window"),
            )
