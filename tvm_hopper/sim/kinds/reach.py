"""The numbers that threads and loops add to a part of the block index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST = 1 << 12  # numbers that are listed
UNBOUNDED = 1 << 62


@dataclass(frozen=True, eq=False)  # arrays do not compare
class Reach:
    """All integers of [low, high], or those of them that are listed.

    It may be too large: then CTAs that behave alike have different keys.

    - `listed` (numpy.ndarray or None): in order, each once; None: all of [low, high].
    """

    low: int
    high: int
    listed: np.ndarray | None = None

    @staticmethod
    def of(numbers: np.ndarray) -> Reach:
        """Return the reach of some numbers."""
        numbers = np.unique(numbers)
        low, high = int(numbers[0]), int(numbers[-1])
        whole = high - low + 1 == len(numbers) or len(numbers) > MOST
        return Reach(low, high, None if whole else numbers)

    def plus(self, other: Reach) -> Reach:
        """Return the sums of one number of each."""
        ends = self.low + other.low, self.high + other.high
        one, two = self._few(), other._few()
        if one is None or two is None or len(one) * len(two) > MOST:
            return Reach(*ends)
        return Reach.of(np.add.outer(one, two))

    def times(self, factor: int) -> Reach:
        """Return the products with a number."""
        few = self._few()
        if few is not None:
            return Reach.of(few * factor)
        low, high = sorted((self.low * factor, self.high * factor))
        return Reach(low, high)

    def _few(self) -> np.ndarray | None:
        if self.listed is not None:
            return self.listed
        if self.high - self.low >= MOST:
            return None
        return np.arange(self.low, self.high + 1, dtype=np.int64)

    def side(self, kind: str, block: np.ndarray) -> np.ndarray:
        """Return, for each CTA, a number that tells for which added numbers a comparison holds.

        The comparison is of `block + added` with 0, and `kind` its name in TIR. CTAs with the same
        number agree in it for every number that is added.
        """
        if self.listed is None:
            if max(-self.low, self.high) >= UNBOUNDED:
                return block
            most = -self.high - (kind not in ("LE", "GT"))  # it holds for all, or none, from here
            least = -self.low + (kind not in ("LT", "GE"))
            return np.clip(block, most, least)
        below = np.searchsorted(self.listed, -block, "left")
        if kind in ("LT", "GE"):
            return below
        upto = np.searchsorted(self.listed, -block, "right")
        if kind in ("LE", "GT"):
            return upto
        return np.where(below < upto, below, -1)  # EQ, NE: the one number with which it is equal
