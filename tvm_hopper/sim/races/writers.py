"""Which access wrote each element of a tensor last, as a run leaves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.launch.tensors import TensorPlacement
from tvm_hopper.sim.races.shadow import EARLIER, AccessLog, Shadow


@dataclass(frozen=True)
class ElementWriters:
    """The last writers of one tensor's elements.

    Attributes
    ----------
    numbers : numpy.ndarray
        For each element the number of the access that wrote its first byte; 0: none. Of the
        tensor's shape.
    """

    numbers: np.ndarray
    log: AccessLog
    machine: Any

    @property
    def written(self) -> np.ndarray:
        """One flag for each element: whether this run has written it."""
        return self.numbers > EARLIER

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
    return ElementWriters(numbers, shadow.log, machine)
