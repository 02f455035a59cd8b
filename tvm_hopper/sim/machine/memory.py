"""Memory of the machine: one flat byte array per tensor and per CTA, addressed by integers.

    bits 0-23   offset in a CTA's shared memory     bits 24-31  rank of the CTA in its cluster
    bit 40      generic address of shared memory    bits 44-    number of the global tensor

The 32 low bits of a shared address are the result of `cvta.to.shared`; its 18 low bits fit a wgmma
descriptor, as on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.options import ShortcutError
from tvm_hopper.sim.races.shadow import AccessLog, Shadow

SHARED = 1 << 40
GLOBAL_SHIFT = 44
RANK_SHIFT = 24
SHARED_BASE = 1024  # nothing lives at address 0, and 1024-byte alignment is kept
POISON = 0xFF  # NaN in every float format


class Region:
    """A contiguous piece of memory with a name, bytes and shadow cells."""

    def __init__(
        self, name: str, data: np.ndarray, base: int, log: AccessLog | None, written: bool
    ) -> None:
        self.name, self.data, self.base = name, data, base
        self.shadow = Shadow(log, data.size, written) if log is not None else None
        self.parts: list[tuple[int, int, str]] = []  # named byte ranges of shared memory
        self.shared = base < (1 << GLOBAL_SHIFT)
        self.low = 0  # first byte that anybody may touch
        self.cta: Any = None  # the CTA of shared memory
        self.live = np.zeros(0, bool)  # bytes that hold a live mbarrier
        self.outside: np.ndarray | None = None  # bytes that are no element of the tensor
        self.unfinished: list[Any] = []  # stores of earlier launches, each to any byte of it
        self.constant = False  # nothing stores to it: shared with its owner, and not watched
        self.is_parameter = False  # a kernel parameter: read-only
        self.view_cache: dict[np.dtype, np.ndarray] = {}

    @property
    def size(self) -> int:
        """Bytes."""
        return self.data.size

    def begin_store(self) -> None:
        """Refuse a store to memory shared with its owner: a run must own memory that it changes.

        - raises ShortcutError: the address came from where translation does not look (memory): run
          it again, watched.
        """
        if self.constant:
            raise ShortcutError(f"{self.name} is stored to, which no statement shows")

    def view(self, dtype: np.dtype) -> np.ndarray:
        """Return the bytes as elements of a type (whole elements only)."""
        found = self.view_cache.get(dtype)
        if found is None:
            whole = self.data.size // dtype.itemsize * dtype.itemsize
            found = self.view_cache[dtype] = self.data[:whole].view(dtype)
        return found

    def name_of(self, offset: int) -> tuple[str, int]:
        """Return the buffer that holds a byte, and the offset inside it."""
        for start, stop, name in self.parts:
            if start <= offset < stop:
                return name, offset - start
        return self.name, offset


def aligned_bytes(size: int, align: int = 1024) -> np.ndarray:
    """Return a poisoned byte array whose first byte is aligned in host memory."""
    raw = np.full(size + align, POISON, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + size]


def global_base(number: int) -> int:
    """Return the address of the first byte of the global tensor `number`."""
    return (number + 1) << GLOBAL_SHIFT


def shared_base(rank: int) -> int:
    """Return the generic address of the first byte of a CTA's shared memory."""
    return SHARED | rank << RANK_SHIFT


# An address a little below the first byte of a memory belongs to that memory, with a negative
# offset, and not to the end of the one before.


def global_number(address: Any) -> Any:
    """Return the key of the global tensor that addresses are nearest to; 0: of none."""
    return address + (1 << GLOBAL_SHIFT - 1) >> GLOBAL_SHIFT


def shared_rank(address: Any) -> Any:
    """Return the rank of the CTA whose shared memory addresses are nearest to."""
    return address + (1 << RANK_SHIFT - 1) >> RANK_SHIFT & 0xFF


def shared_offset(address: Any) -> Any:
    """Return the offset of addresses in the shared memory of `shared_rank`."""
    half = 1 << RANK_SHIFT - 1
    return (address + half & (1 << RANK_SHIFT) - 1) - half
