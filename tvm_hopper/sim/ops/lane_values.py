"""Values of votes, matches, reductions and shuffles between the lanes of a warp.

None of them orders memory (PTX ISA, 9.7.9.6 shfl.sync, 9.7.13.9 vote.sync, match.sync,
redux.sync). The participating lanes are checked as for every shuffle.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from tvm_hopper.sim.layouts.fragments import matrices_of, registers_of
from tvm_hopper.sim.machine.lanes import LANES, as_lanes
from tvm_hopper.sim.races.lane_order import lane_bits

_REDUCTIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


class LaneValueOps:
    """Mixin of `Warp`."""

    # -- votes and matches ------------------------------------------------------------------------

    def op_vote_sync(self, site: int, mask: Any, mods: Any, a: Any, membermask: Any) -> int:
        """Return in which lanes a predicate holds, or whether in all, any, all or none of them."""
        return int(self.vote(site, mask, mods["mode"], membermask, a))

    def op_match_any_sync(
        self, site: int, mask: Any, mods: Any, a: Any, membermask: Any
    ) -> np.ndarray:
        """Return, to each lane, the lanes that hold the same value."""
        self.members(site, mask, membermask, "match.sync")
        bits = _bits(a)
        same = bits[:, None] == bits[None, :]
        if mask is not None:
            same &= mask[None, :]
        return np.array([lane_bits(row) for row in same], np.uint32)

    def op_match_all_sync_p(
        self, site: int, mask: Any, mods: Any, a: Any, membermask: Any
    ) -> tuple[int, int]:
        """Return the lanes if all hold one value, else zero; and whether they do."""
        self.members(site, mask, membermask, "match.sync")
        bits = _bits(a) if mask is None else _bits(a)[mask]
        same = bool((bits == bits[0]).all())
        return lane_bits(mask) if same else 0, int(same)

    def op_match_all_sync(self, site: int, mask: Any, mods: Any, a: Any, membermask: Any) -> int:
        """Return the lanes if all hold one value, else zero."""
        return int(self.op_match_all_sync_p(site, mask, mods, a, membermask)[0])

    # -- reductions -------------------------------------------------------------------------------

    def reduce_lanes(
        self, site: int, mask: Any, op: str, membermask: Any, value: Any, dtype: np.dtype
    ) -> Any:
        """Return one value for all lanes of a mask (`redux.sync`); integers wrap."""
        self.members(site, mask, membermask, "redux.sync")
        values = np.broadcast_to(as_lanes(value), (32,)).astype(dtype)
        with np.errstate(over="ignore"):
            found = reduce(_REDUCTIONS[op], values if mask is None else values[mask])
        return found.item()

    def op_redux_sync(self, site: int, mask: Any, mods: Any, a: Any, membermask: Any) -> Any:
        """Reduce integers, or bits."""
        return self.reduce_lanes(site, mask, mods["op"], membermask, a, self._type(mods))

    # -- exchanges --------------------------------------------------------------------------------

    def op_shfl_sync_p(
        self, site: int, mask: Any, mods: Any, a: Any, b: Any, c: Any, membermask: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Exchange values between lanes; return them, and whether a source was in range.

        Operand c holds the clamp in bits 0 to 4 and the segment mask in bits 8 to 12.
        """
        self.members(site, mask, membermask, "shfl.sync")
        offset, control = (as_lanes(x).astype(np.int64) for x in (b, c))
        offset, clamp, segment = offset & 31, control & 31, control >> 8 & 31
        least = LANES & segment
        most = least | (clamp & ~segment)
        mode = mods["mode"]
        if mode == "up":
            source = LANES - offset
            inside = source >= most
        else:
            source = {
                "down": LANES + offset,
                "bfly": LANES ^ offset,
                "idx": least | (offset & ~segment),
            }[mode]
            inside = source <= most
        return self._shuffle(mask, a, source, inside), inside

    def op_shfl_sync(self, site: int, mask: Any, mods: Any, **operands: Any) -> Any:
        """Exchange values between lanes."""
        return self.op_shfl_sync_p(site, mask, mods, **operands)[0]

    def op_movmatrix(self, site: int, mask: Any, mods: Any, a: Any) -> np.ndarray:
        """Transpose an 8x8 matrix of 16-bit elements, two of a row in each lane (9.7.14.5.17)."""
        self._require_full(site, mask, "movmatrix")
        words = np.broadcast_to(as_lanes(a), (32,)).astype(np.uint32)
        return registers_of(matrices_of(words, False), True)[0]


def _bits(value: Any) -> np.ndarray:
    """Return values as unsigned words of all lanes."""
    values = np.ascontiguousarray(np.broadcast_to(as_lanes(value), (32,)))
    return values.view(f"uint{8 * values.dtype.itemsize}")
