"""Decode WGMMA matrix descriptors: the shared-memory bytes of 64 bits.

Written from PTX ISA 9.1, 9.7.15.5.1.2: the fields of the descriptor, and the canonical layouts in
the manual's own notation, which is evaluated as it is. `facts/wgmma.py` goes the other way,
from a tile to descriptors.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

# Field: first bit, last bit. The manual's matrix-descriptor-encode keeps bits 4 to 17 of the
# first three.
FIELDS = {
    "start": (0, 13),
    "leading_bytes": (16, 29),
    "stride_bytes": (32, 45),
    "base_offset": (49, 51),
    "mode": (62, 63),
}
SPAN_OF_MODE = (0, 128, 64, 32)

# "(coordinates of m or n),(coordinates of k)" and their strides; T is the number of elements in 16
# bytes, m and k count repetitions, LBO and SBO are the descriptor's. Innermost coordinate first.
CANONICAL = {
    ("mn", 0): "((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))",
    ("mn", 32): "((T,2,m),(8,k)):((1,T,LBO),(2T,SBO))",
    ("mn", 64): "((T,4,m),(8,k)):((1,T,LBO),(4T,SBO))",
    ("mn", 128): "((T,8,m),(8,k)):((1,T,LBO),(8T,SBO))",
    ("k", 0): "((8,m),(T,2k)):((1T,SBO),(1,LBO))",
    ("k", 32): "((8,m),(T,2k)):((2T,SBO),(1,T))",
    ("k", 64): "((8,m),(T,2k)):((4T,SBO),(1,T))",
    ("k", 128): "((8,m),(T,2k)):((8T,SBO),(1,T))",
}


@dataclass(frozen=True)
class MatrixDescriptor:
    """The fields of a matrix descriptor; lengths in bytes, `span` the mode's, 0 for none."""

    start: int
    leading_bytes: int
    stride_bytes: int
    base_offset: int
    span: int

    @staticmethod
    def of(value: int) -> MatrixDescriptor:
        """Decode the 64 bits; bits outside of all fields are ignored."""
        raw = {
            name: value >> low & (1 << high - low + 1) - 1 for name, (low, high) in FIELDS.items()
        }
        return MatrixDescriptor(
            raw["start"] << 4,
            raw["leading_bytes"] << 4,
            raw["stride_bytes"] << 4,
            raw["base_offset"],
            SPAN_OF_MODE[raw["mode"]],
        )

    def addresses(self, major: str, rows: int, depth: int, itemsize: int) -> np.ndarray:
        """Return the byte address of every element that one instruction reads.

        - `major`: "k" or "mn": the direction in which neighbours in memory follow each other.
        - `rows`: m of A, n of B.
        - `depth`: k of the instruction.
        - `itemsize`: bytes of an element.
        - returns (np.ndarray): int64, shape (rows, depth).
        """
        sizes = {"T": 16 // itemsize}
        strides = {"1": itemsize, "T": 16, "LBO": self.leading_bytes, "SBO": self.stride_bytes}
        shape, stride = CANONICAL[major, self.span].split(":")
        plain = np.full((rows, depth), self.start, np.int64)
        coordinates = (np.arange(rows)[:, None], np.arange(depth)[None, :])
        for rest, extents, steps in zip(coordinates, _groups(shape), _groups(stride), strict=True):
            for extent, step in zip(extents[:-1], steps[:-1], strict=True):
                size = sizes.get(extent) or int(extent)
                plain = plain + rest % size * _bytes_of(step, strides)
                rest = rest // size  # the rest for the coordinates outside
            plain = plain + rest * _bytes_of(steps[-1], strides)
        return swizzled(plain, self.span, self.base_offset)


def _groups(text: str) -> list[list[str]]:
    """Split "((a,b),(c,d))" into its two groups of words."""
    return [group.strip("(),").split(",") for group in text.strip("()").split("),(")]


def _bytes_of(step: str, strides: dict[str, int]) -> int:
    """Return a stride in bytes: a name of `strides`, or a number of times T."""
    return strides[step] if step in strides else int(step[:-1]) * strides["T"]


# -- swizzle modes as the table of PTX draws them
# The passes compute a place by an exclusive or (`facts/swizzle.py`); here it is looked up in the
# drawing, so that neither can repeat a mistake of the other.


PIECE = 16  # bytes that stay together
LINE = 128  # bytes of shared memory in a row of the drawing

# PTX ISA 9.1, 5.5.5: a row is 128 bytes of shared memory, a digit the 16-byte piece of the plain
# order that lies there. The drawing begins again below its last row.
DRAWINGS = {
    0: ("01234567",),
    32: ("01234567", "10325476"),
    64: ("01234567", "10325476", "23016745", "32107654"),
    128: (
        "01234567",
        "10325476",
        "23016745",
        "32107654",
        "45670123",
        "54761032",
        "67452301",
        "76543210",
    ),
}


@functools.lru_cache(maxsize=4)
def _places(span: int) -> np.ndarray:
    """Return where each 16-byte piece of one repetition lies, in pieces."""
    lies_here = [8 * row + int(d) for row, line in enumerate(DRAWINGS[span]) for d in line]
    places = np.empty(len(lies_here), np.int64)
    places[lies_here] = np.arange(len(lies_here))
    return places


def swizzled(addresses: np.ndarray, span: int, first_line: int = 0) -> np.ndarray:
    """Return the shared-memory addresses at which a mode puts the elements of plain addresses.

    - `addresses` (np.ndarray): bytes, int64, any shape.
    - `span`: bytes of the mode: 0 (none), 32, 64 or 128.
    - `first_line`: line of 128 bytes, modulo the drawing, at which a repetition begins.
    """
    places = _places(span)
    shift = first_line * LINE
    piece, inside = np.divmod(addresses - shift, PIECE)
    repetition, number = np.divmod(piece, len(places))
    return (repetition * len(places) + places[number]) * PIECE + inside + shift
