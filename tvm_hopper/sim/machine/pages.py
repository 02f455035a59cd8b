"""Large sparse arrays: a page takes memory when it is first written."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

SPARSE = 1 << 20  # bytes from which memory is taken page by page, and of a piece that is copied
LARGE = 1 << 28  # bytes from which an array that repeats a pattern shares its pages
PAGES_SHARED = 32749  # a prime: elements that a wrong stride confuses are not in one place of them
DEFAULT_BYTES = 16 << 30  # assumed available by default
_PRIVATE_FIXED = 0x02 | 0x10  # MAP_PRIVATE | MAP_FIXED of Linux


def no_bytes(size: int) -> np.ndarray:
    """Return bytes of zeros that take memory page by page, when they are written.

    Numpy requests huge pages: one row of a tile would take a whole one.
    """
    if size < SPARSE:
        return np.zeros(size, np.uint8)
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return np.frombuffer(mmap.mmap(-1, size), np.uint8)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def sparse_copy(data: np.ndarray, blank: bool = False) -> np.ndarray:
    """Return a copy of bytes whose zero pages take no memory, if there are many.

    `blank`: their values do not matter; then many that begin with zero are not read.
    """
    if data.size < SPARSE:
        return data.copy()
    if blank and data.size >= LARGE and not data[0]:
        return no_bytes(data.size)
    copy = no_bytes(data.size)
    for start in range(0, data.size, SPARSE):
        piece = data[start : start + SPARSE]
        if piece.any():
            copy[start : start + SPARSE] = piece
    return copy


def available_bytes() -> int:
    """Return how much memory this process may still take, about."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = dict(line.split(":", 1) for line in lines)
        return int(found["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return DEFAULT_BYTES


def fill_repeating(flat: np.ndarray, pattern: np.ndarray) -> None:
    """Fill an array with a pattern over and over; a large one shares its pages, till it is written.

    - raises MemoryError: it does not fit into memory, and its pages cannot be shared here.
    """
    address = flat.__array_interface__["data"][0]
    if flat.nbytes >= LARGE and address % mmap.PAGESIZE == 0 and hasattr(os, "memfd_create"):
        shared = np.empty(PAGES_SHARED * mmap.PAGESIZE // flat.itemsize, flat.dtype)
        _repeat(shared, pattern)
        if _share_pages(address, flat.nbytes // mmap.PAGESIZE, shared):
            rest = flat.nbytes // mmap.PAGESIZE * mmap.PAGESIZE // flat.itemsize
            _repeat(flat[rest:], pattern)
            return
    if flat.nbytes > available_bytes():
        raise MemoryError(f"a tensor of {flat.nbytes >> 30} GiB")
    _repeat(flat, pattern)


def _repeat(flat: np.ndarray, pattern: np.ndarray) -> None:
    for first in range(0, flat.size, max(pattern.size, 1)):
        flat[first : first + pattern.size] = pattern[: flat.size - first]


def _share_pages(address: int, pages: int, content: np.ndarray) -> bool:
    """Put copies of some pages, which cost memory when they are written, in the place of others.

    These are of a mapping of this process's own (`no_bytes`), which stays whole.
    """
    place = ctypes.CDLL(None, use_errno=True).mmap
    place.restype = ctypes.c_void_p
    place.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *([ctypes.c_int] * 3), ctypes.c_long]
    file = os.memfd_create("tvm_hopper")
    try:
        raw = memoryview(content.tobytes())
        done = 0
        while done < len(raw):
            done += os.write(file, raw[done:])
        for first in range(0, pages, PAGES_SHARED):
            start = address + first * mmap.PAGESIZE
            size = min(PAGES_SHARED, pages - first) * mmap.PAGESIZE
            access = mmap.PROT_READ | mmap.PROT_WRITE
            if place(start, size, access, _PRIVATE_FIXED, file, 0) != start:
                return False
    finally:
        os.close(file)
    return True
