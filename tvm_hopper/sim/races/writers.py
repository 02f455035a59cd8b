"""Track the last write of each tensor element."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.launch.tensors import TensorPlacement
from tvm_hopper.sim.races.shadow import AccessLog, Shadow

ROWS_AT_ONCE = 1 << 20  # elements that are looked at together


@dataclass(frozen=True)
class ElementWriters:
    """The last writers of one tensor's elements.

    - `numbers` (numpy.ndarray): for each element the number of the access that wrote its first
      byte; 0: none. It has the shape of the tensor.
    """

    numbers: np.ndarray
    log: AccessLog
    machine: Any
    shadow: Shadow
    offset: int

    def written(self, part: Any) -> np.ndarray:
        """Return for each element of a part (a numpy index) whether this run has written it."""
        return self.numbers[part] >= self.log.first

    def places(self) -> np.ndarray:
        """Return the indices of the elements that this run has written, (count, dimensions).

        A few rows at a time: most of a large tensor is untouched, and takes no memory so.
        """
        numbers = self.numbers
        if self.shadow.touched is not None and numbers.flags.c_contiguous:
            return np.concatenate([np.zeros((0, numbers.ndim), np.int64), *self._in_pieces()])
        if numbers.ndim == 0:
            return np.zeros((int(self.written(())), 0), np.int64)
        rows = max(ROWS_AT_ONCE * len(numbers) // max(numbers.size, 1), 1)
        found = [np.zeros((0, numbers.ndim), np.int64)]
        for first in range(0, len(numbers), rows):
            inside = np.argwhere(self.written(slice(first, first + rows)))
            inside[:, 0] += first
            found.append(inside)
        return np.concatenate(found)

    def _in_pieces(self) -> Iterator[np.ndarray]:
        """Yield the same for each piece that a thread has touched, of elements one by one."""
        flat = self.numbers.reshape(-1)
        size = self.shadow.granule * (flat.strides[0] // self.shadow.writer.itemsize)
        for low, high in self.shadow.touched_bytes():
            first, last = max(low - self.offset, 0), max(high - self.offset, 0)
            part = slice(-(-first // size), -(-last // size))
            found = np.flatnonzero(flat[part] >= self.log.first) + part.start
            yield np.stack(np.unravel_index(found, self.numbers.shape), axis=1)

    def describe(self, index: tuple[int, ...]) -> tuple[str, str]:
        """Return the agent that wrote an element, and the statement with warp and iteration."""
        access = self.log.accesses[int(self.numbers[index])]
        return access.warp.label, self.machine.place(access.warp, access.site, access.it)


def element_writers(shadow: Shadow, at: TensorPlacement, machine: Any) -> ElementWriters:
    """Look at the shadow cells of a tensor's memory as at the tensor: one cell for each element."""
    array = at.array
    divisor = array.itemsize | at.offset
    for step in array.strides:
        divisor |= abs(step)
    if divisor & (shadow.granule - 1):  # a cell holds parts of several elements
        shadow.refine(divisor)
    granule, cell = shadow.granule, shadow.writer.itemsize
    numbers: np.ndarray = np.ndarray(
        array.shape,
        shadow.writer.dtype,
        shadow.writer,
        at.offset // granule * cell,
        [step // granule * cell for step in array.strides],
    )
    return ElementWriters(numbers, shadow.log, machine, shadow, at.offset)
