"""Track initialised registers of each thread.

Variables of the constant and global state spaces alone can be initialized (PTX ISA 9.1, 5.4.4):
what a register holds before its thread writes it is not defined. A copy of such a register holds
nothing either; what is reported is its use: a store, a branch or an address that depends on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import LANES, is_lanes


class HeldRegisters:
    """The bytes of one register array that hold a value, in each lane.

    Attributes
    ----------
    held : numpy.ndarray
        (32, bytes) bool.
    left : int
        How many do not: nothing is to be asked, or noted, once it is zero.
    """

    __slots__ = ("held", "left")

    def __init__(self, size: int, exists: np.ndarray | None) -> None:
        self.held = np.zeros((32, size), bool)
        if exists is not None:
            self.held[~exists] = True
        self.left = self.held.size - np.count_nonzero(self.held)

    def holds(self, index: Any, count: int, size: int) -> Any:
        """Tell whether elements hold a value: True, (32,) or (32, elements) bool."""
        if not self.left:
            return True
        if not is_lanes(index):
            part = self.held[:, self._part(int(index), count, size)]
            return part.all(axis=1) if count == 1 else part.reshape(32, count, size).all(axis=2)
        places = self._places(index, count, size)
        found = self.held[LANES[:, None, None], places].all(axis=2)
        return found[:, 0] if index.ndim == 1 and count == 1 else found

    def write(self, index: Any, count: int, size: int, mask: Any, value: Any = True) -> None:
        """Note that active lanes wrote elements: a value, or what itself holds none."""
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
    """Return what each of `count` elements holds, (32, count)."""
    if value.ndim == 2 and value.shape[1] == count:
        return value
    lanes: Any = value.reshape(32, -1).all(axis=1)
    return np.broadcast_to(lanes[:, None], (32, count))


def all_held(*parts: Any) -> Any:
    """Tell whether all operands of an expression hold a value, as `HeldRegisters.holds` does."""
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
    """Tell whether all operands hold a value in all lanes, which an instruction mixes."""
    found = held_lanes(*parts)
    return True if found is True or found.all() else np.zeros(32, bool)
