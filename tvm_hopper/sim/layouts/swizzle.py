"""Swizzle modes as the table of PTX draws them.

The passes compute a place by an exclusive or (`facts/swizzle.py`); here it is looked up in the
drawing, so that neither can repeat a mistake of the other.
"""

from __future__ import annotations

import functools

import numpy as np

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

    Parameters
    ----------
    addresses : np.ndarray
        Bytes, int64, any shape.
    span : int
        Bytes of the mode: 0 (none), 32, 64 or 128.
    first_line : int
        Line of 128 bytes, modulo the drawing, at which a repetition begins.
    """
    places = _places(span)
    shift = first_line * LINE
    piece, inside = np.divmod(addresses - shift, PIECE)
    repetition, number = np.divmod(piece, len(places))
    return (repetition * len(places) + places[number]) * PIECE + inside + shift
