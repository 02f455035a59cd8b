"""Choose the outputs that are stored by TMA through shared memory.

Rows that begin off sectors of 32 bytes share sectors with others: stores by threads touch parts of
them. Kernels are 1.1 to 1.4 times slower by that with sums up to 128 terms (9680x12488x96,
11592x16296x128, 15440x10440x64, bfloat16, H200), and 1.02 to 1.1 times up to 1456. Where the
columns of a tile fill no whole boxes it is the other way round (8216x14104x256 by 192x160: 0.65),
and where slots of the ring have to go (7904x7208x512 by 256x192: 0.9).
"""

from __future__ import annotations

from typing import Any

from tvm_hopper.facts.programming_model import SECTOR_BYTES
from tvm_hopper.facts.swizzle import CHUNK_BYTES, span_bytes

MOST_SHALLOW = 128  # terms of a sum, up to which a kernel mostly stores
MOST_STORED = 1536  # up to which stores are a share that counts
LARGEST_STORED = 192 * 192  # of a tile next to whose ring enough of it fits


def leave_as_boxes(rows: Any, columns: Any, depth: int, row: int, size: int) -> Any:
    """Tell whether tiles of `rows` x `columns`, ints or arrays, are worth stores of whole boxes.

    Parameters
    ----------
    rows, columns : int or array of int
        Of a tile of the output.
    depth : int
        Terms of a sum.
    row : int
        Elements of a row of the output.
    size : int
        Bytes of one.
    """
    if row * size % SECTOR_BYTES == 0 or row * size % CHUNK_BYTES:  # TMA takes no others
        return False & (columns > 0)
    small = (rows * columns <= LARGEST_STORED) & (depth <= MOST_STORED)
    return (columns * size % span_bytes(128) == 0) & (small | (depth <= MOST_SHALLOW))
