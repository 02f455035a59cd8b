"""Registers that wgmma reads and writes: which are in flight, which need a fence first.

One `RegState` per register array and warp, in bytes.  Lanes are not told apart, since a wgmma takes
the same registers in all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.held_registers import HeldRegisters
from tvm_hopper.sim.machine.lanes import register


class RegState:
    """State of one register array of one warp."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.busy = np.zeros(size, np.int32)  # wgmma operations in flight that use the byte
        self.dirty = np.ones(size, bool)  # touched since the last wgmma.fence
        self.any_dirty = True
        self.shape = np.zeros(size, np.int32)  # key of the last mma shape; 0 none
        self.num_busy = 0
        self.refs: dict[int, RegRef] = {}
        self.held: HeldRegisters | None = None  # None: not watched

    def ref(self, array: np.ndarray, indices: Any, itemsize: int) -> RegRef:
        """Return a reference to the registers that a constant of the generated code names."""
        found = self.refs.get(id(indices))
        if found is None or found.array is not array:
            found = self.refs[id(indices)] = RegRef(array, self, indices, itemsize)
        return found


class RegRef:
    """Some elements of a register array.

    Attributes
    ----------
    array : numpy.ndarray
        The registers of all lanes, shape (32, n).
    indices : slice or numpy.ndarray
        Element numbers.
    bytes : slice or numpy.ndarray
        The bytes in `state` that the elements cover.
    key : tuple
        Identity of the registers, for chains of wgmma on one accumulator.
    """

    __slots__ = ("array", "bytes", "indices", "key", "state")

    def __init__(self, array: np.ndarray, state: RegState, indices: Any, itemsize: int) -> None:
        self.array, self.state, self.indices = array, state, indices
        self.bytes: Any
        self.key: tuple[Any, ...]
        if isinstance(indices, slice):
            register(indices.start, array.shape[1])
            register(indices.stop - 1, array.shape[1])
            self.bytes = slice(indices.start * itemsize, indices.stop * itemsize)
            self.key = (id(state), indices.start, indices.stop)
        else:
            register(indices.min(), array.shape[1])
            register(indices.max(), array.shape[1])
            self.bytes = (indices[:, None] * itemsize + np.arange(itemsize)).ravel()
            self.key = (id(state), *indices.tolist())

    @staticmethod
    def indices_of(indices: list[int]) -> Any:
        """Turn element numbers into a slice where they are consecutive."""
        first = indices[0]
        if indices == list(range(first, first + len(indices))):
            return slice(first, first + len(indices))
        return np.asarray(indices)

    def read(self) -> np.ndarray:
        """Return the values, shape (32, count)."""
        return self.array[:, self.indices].copy()

    def write(self, values: np.ndarray) -> None:
        """Store values of shape (32, count)."""
        self.array[:, self.indices] = values
