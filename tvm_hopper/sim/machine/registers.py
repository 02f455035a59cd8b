"""Registers of a warp: which are initialised in each thread, and their use by wgmma.

Variables of the constant and global state spaces alone can be initialized (PTX ISA 9.1, 5.4.4):
the value of a register before its thread writes it is not defined. A copy of such a register holds
no value either. Its use is reported: a store, a branch or an address that depends on it.

State of wgmma registers: in flight, or in need of a fence. One `RegState` per register array and
warp, in bytes. All lanes share it, since a wgmma takes the same registers in all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import LANES, is_lanes, register


class HeldRegisters:
    """The bytes of one register array that hold a value, in each lane.

    - `held` (numpy.ndarray): (32, bytes) bool.
    - `left` (int): number of bytes that do not: once it is zero, checks and notes are skipped.
    """

    __slots__ = ("held", "left")

    def __init__(self, size: int, exists: np.ndarray | None) -> None:
        self.held = np.zeros((32, size), bool)
        if exists is not None:
            self.held[~exists] = True
        self.left = self.held.size - np.count_nonzero(self.held)

    def holds(self, index: Any, count: int, size: int) -> Any:
        """Return whether elements hold a value: True, (32,) or (32, elements) bool."""
        if not self.left:
            return True
        if not is_lanes(index):
            part = self.held[:, self._part(int(index), count, size)]
            return part.all(axis=1) if count == 1 else part.reshape(32, count, size).all(axis=2)
        places = self._places(index, count, size)
        found = self.held[LANES[:, None, None], places].all(axis=2)
        return found[:, 0] if index.ndim == 1 and count == 1 else found

    def write(self, index: Any, count: int, size: int, mask: Any, value: Any = True) -> None:
        """Note that active lanes wrote elements: a value, or an undefined one."""
        if not is_lanes(index):
            where: tuple[Any, Any] = (slice(None), self._part(int(index), count, size))
            width = count
        else:
            places = self._places(index, count, size)
            width = places.shape[1]
            where = (LANES[:, None], places.reshape(32, -1))
        new = value if value is True else np.repeat(_by_element(value, width), size, axis=1)
        if mask is not None:
            new = np.where(mask[:, None], new, self.held[where])
        self.held[where] = new
        self.left = self.held.size - np.count_nonzero(self.held)

    def accumulate(self, part: Any, adds: bool, value: Any) -> None:
        """Note a wgmma: D has a value if A has one, and, where it is added to, D had one."""
        if not self.left and value is True:
            return
        if not adds:
            self.held[:, part] = True
        if value is not True:
            self.held[np.nonzero(~value)[0][:, None], part] = False
        self.left = self.held.size - np.count_nonzero(self.held)

    def lanes(self, part: Any) -> Any:
        """Tell in which lanes all of some bytes hold a value: True or (32,) bool."""
        return self.held[:, part].all(axis=1) if self.left else True

    def _part(self, index: int, count: int, size: int) -> slice:
        """Return the bytes of elements; an index outside of the array is reported elsewhere."""
        low = min(max(index, 0), self.held.shape[1] // size - count) * size
        return slice(low, low + count * size)

    def _places(self, index: np.ndarray, count: int, size: int) -> np.ndarray:
        """Return the bytes of elements that each lane names: (32, elements, size)."""
        elements = index[:, None] + np.arange(count) if index.ndim == 1 else index
        elements = np.clip(elements.astype(np.int64), 0, self.held.shape[1] // size - 1)
        elements = np.broadcast_to(elements, (32, elements.shape[1]))
        return elements[:, :, None] * size + np.arange(size)


def _by_element(value: np.ndarray, count: int) -> np.ndarray:
    """Return which of `count` elements hold a value, (32, count)."""
    if value.ndim == 2 and value.shape[1] == count:
        return value
    lanes: Any = value.reshape(32, -1).all(axis=1)
    return np.broadcast_to(lanes[:, None], (32, count))


def all_held(*parts: Any) -> Any:
    """Return whether all operands of an expression hold a value, as `HeldRegisters.holds` does."""
    found: Any = True
    for part in parts:
        if part is True or found is True:
            found = part if found is True else found
        elif part.shape == found.shape:
            found = found & part
        else:
            found = held_lanes(found) & held_lanes(part)
    return found


def held_lanes(*parts: Any) -> Any:
    """Tell in which lanes all operands hold a value: True or (32,) bool."""
    found = all_held(*parts)
    return found.all(axis=1) if found is not True and found.ndim == 2 else found


def held_by_warp(*parts: Any) -> Any:
    """Return whether all operands hold a value in all lanes, which an instruction mixes."""
    found = held_lanes(*parts)
    return True if found is True or found.all() else np.zeros(32, bool)


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

    - `array` (numpy.ndarray): the registers of all lanes, shape (32, n).
    - `indices` (slice or numpy.ndarray): element numbers.
    - `bytes` (slice or numpy.ndarray): the bytes in `state` that the elements cover.
    - `key` (tuple): identity of the registers, for chains of wgmma on one accumulator.
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
        """Return consecutive element numbers as a slice, others as an array."""
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
