"""Registers that wgmma reads and writes: which are in flight, which need a fence first.

One `RegState` per register array and warp, in bytes.  Lanes are not told apart, since a wgmma takes
the same registers in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


class RegState:
    """State of one register array of one warp."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.busy = np.zeros(size, np.int32)  # wgmma operations in flight that use the byte
        self.dirty = np.ones(size, bool)  # touched since the last wgmma.fence
        self.shape = np.zeros(size, np.int32)  # key of the last mma shape; 0 none
        self.num_busy = 0


@dataclass(frozen=True, eq=False)
class RegRef:
    """Some elements of a register array: `indices` is a slice or an index array."""

    array: np.ndarray  # (32, n)
    state: RegState
    indices: Any
    itemsize: int

    @staticmethod
    def indices_of(indices: list[int]) -> Any:
        """Turn element numbers into a slice where they are consecutive."""
        first = indices[0]
        if indices == list(range(first, first + len(indices))):
            return slice(first, first + len(indices))
        return np.asarray(indices)

    @property
    def bytes(self) -> Any:
        """The bytes in `state` that the elements cover."""
        if isinstance(self.indices, slice):
            return slice(self.indices.start * self.itemsize, self.indices.stop * self.itemsize)
        return (self.indices[:, None] * self.itemsize + np.arange(self.itemsize)).ravel()

    @property
    def key(self) -> tuple[Any, ...]:
        """Identity of the registers, for chains of wgmma on one accumulator."""
        if isinstance(self.indices, slice):
            return (id(self.state), self.indices.start, self.indices.stop)
        return (id(self.state), *self.indices.tolist())

    def read(self) -> np.ndarray:
        """Return the values, shape (32, count)."""
        return self.array[:, self.indices].copy()

    def write(self, values: np.ndarray) -> None:
        """Store values of shape (32, count)."""
        self.array[:, self.indices] = values
