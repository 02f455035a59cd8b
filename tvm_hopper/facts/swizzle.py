"""Swizzle patterns of shared memory for TMA and WGMMA.

A pattern of `swizzle_bytes` exchanges 16-byte chunks inside rows of `swizzle_bytes`; the address
bits from 7 on decide which chunk goes where. Three bits take part for 128 B, two for 64 B, one for
32 B. In CUTLASS' notation: Swizzle<3,4,3>, Swizzle<2,4,3>, Swizzle<1,4,3> over byte addresses
(source: CUTLASS `cute/atom/mma_traits_sm90_gmma.hpp`; PTX ISA 9.1, 5.5.5 "Swizzling modes").
"""

from typing import Any

from .dtypes import dtype_bytes

SWIZZLES = (0, 32, 64, 128)
_XOR_BITS = {0: 0, 32: 1, 64: 2, 128: 3}
CHUNK_BYTES = 16  # what moves as one piece


def check_swizzle(swizzle_bytes: int) -> int:
    """Return `swizzle_bytes` when it is one of the four patterns.

    Raises
    ------
    ValueError
        It is none of 0, 32, 64, 128.
    """
    if swizzle_bytes not in _XOR_BITS:
        raise ValueError(f"swizzle: found {swizzle_bytes} bytes; need one of 0, 32, 64, 128")
    return swizzle_bytes


def swizzle_offset(byte_offset: Any, swizzle_bytes: int) -> Any:
    """Return where the byte lies that a plain layout would put at `byte_offset`.

    `byte_offset` is an int, an integer array or a TIR expression, and counts from an address
    aligned to `atom_bytes(swizzle_bytes)`. The function is its own inverse.
    """
    bits = _XOR_BITS[check_swizzle(swizzle_bytes)]
    if not bits:
        return byte_offset
    mask = (1 << bits) - 1
    return byte_offset ^ (((byte_offset >> 7) & mask) << 4)


def swizzle_chunk(row: Any, chunk: Any, swizzle_bytes: int) -> Any:
    """Return which 16-byte chunk of its row holds what a plain layout would put into `chunk`.

    A row is as long as the pattern is wide, and rows count from an address aligned to
    `atom_bytes(swizzle_bytes)`: `swizzle_offset` in two dimensions. Arguments are ints or TIR
    expressions.
    """
    bits = _XOR_BITS[check_swizzle(swizzle_bytes)]
    if not bits:
        return chunk
    return chunk ^ (row // (128 // swizzle_bytes) % (1 << bits))


def span_bytes(swizzle_bytes: int) -> int:
    """Return the length of one row of a shared tile: the widest inner box, 16 B without a swizzle.

    Without a swizzle TMA would allow wider rows, but WGMMA reads 8x16 B core matrices only.
    """
    return check_swizzle(swizzle_bytes) or CHUNK_BYTES


def span_elements(swizzle_bytes: int, dtype: str) -> int:
    """Return how many elements of `dtype` one row of a shared tile holds."""
    return span_bytes(swizzle_bytes) // dtype_bytes(dtype)


def atom_bytes(swizzle_bytes: int) -> int:
    """Return the size after which the pattern repeats: eight rows (1024, 512, 256 or 128 bytes)."""
    return 8 * span_bytes(swizzle_bytes)


def alignment(swizzle_bytes: int) -> int:
    """Return the alignment in bytes at which a tile starts with a descriptor's base offset of 0.

    PTX ISA 9.1, 9.7.15.5.1.2.2: 1024, 512 and 256 bytes; never less than TMA's own 128.
    """
    return max(atom_bytes(swizzle_bytes), 128)
