"""Large arrays of which few parts are touched: memory is taken when a page is written."""

from __future__ import annotations

import mmap

import numpy as np

SPARSE = 1 << 20  # bytes from which memory is taken page by page, and of a piece that is copied


def no_bytes(size: int) -> np.ndarray:
    """Return bytes of zeros that take memory page by page, when they are written.

    Numpy asks for huge pages, of which a row of a tile would take a whole one.
    """
    if size < SPARSE:
        return np.zeros(size, np.uint8)
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return np.frombuffer(mmap.mmap(-1, size), np.uint8)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def sparse_copy(data: np.ndarray) -> np.ndarray:
    """Return a copy of bytes of which zeros take no memory, where there are many."""
    if data.size < SPARSE:
        return data.copy()
    copy = no_bytes(data.size)
    for start in range(0, data.size, SPARSE):
        piece = data[start : start + SPARSE]
        if piece.any():
            copy[start : start + SPARSE] = piece
    return copy
