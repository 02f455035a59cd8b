"""Choose the outputs that are stored by TMA through shared memory.

Rows that begin off sectors of 32 bytes share sectors with others: stores by threads touch parts of
them. Kernels are 1.1 to 1.4 times slower by that with sums up to 128 terms (9680x12488x96,
11592x16296x128, 15440x10440x64, bfloat16, H200), and 1.02 to 1.1 times up to 1456. Where the
columns of a tile fill no whole boxes it is the other way round (8216x14104x256 by 192x160: 0.65),
and where slots of the ring have to go (7904x7208x512 by 256x192: 0.9).

Outputs of several waves of the shortest sums leave by TMA in rows at sectors, too: 1.3 to 1.5 times
faster than by threads (6416x4080x128 of float8, 10144x1616x96 and 6456x7168x32 of 8-bit integers).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.facts.programming_model import SECTOR_BYTES
from tvm_hopper.facts.swizzle import CHUNK_BYTES, span_bytes

from .candidates import Candidates
from .config import ARCH

# Operand bytes of a sum by the bytes of its output element: of 16 bits the terms of the sum.
MOST_SHORT = 64  # up to which threads have no time to store
MOST_SHALLOW = 128  # up to which a kernel mostly stores
MOST_STORED = 1536  # up to which stores are a share that counts
LARGEST_STORED = 192 * 192  # of a tile next to whose ring enough of it fits
# From which on outputs of several waves leave as whole boxes behind the next tile's loads: 1% less
# time at 4096^3, 0.7% at 8192^3, 1.3% at 16384x8192x4096 (bfloat16, four layouts), 3.7% at
# 8192x2816x2048, 2% at 4096x4096x1024; of 14 others none lost 0.5%.
LEAST_DEEP = 1024
DEEP_GAIN = 0.015  # of the time
MEASURED_BYTES = 2  # of an element
BOX_COLUMNS = span_bytes(128) // MEASURED_BYTES
MOST_PIECES = 2  # of a tile: the second waits for the first
# With three the loads of a tile of 128x256 are in time; the fourth is worth less than stores that
# never wait for one another: three and one part take 1.1% less time at 8192x14336x4096 than four
# and two, 0.6% at 4096^3, 0.1% at 8192^3.
ENOUGH_STAGES = 3


def terms_by_output(depth: Any, operand_bytes: int, output_bytes: int) -> Any:
    """Return how long a sum takes next to the store of its result, as terms of a 16-bit product."""
    return depth * operand_bytes // output_bytes


def _has_room(rows: Any, columns: Any, slot_bytes: Any, size: int) -> Any:
    """Tell tiles of which half, in whole boxes, or all fits next to `ENOUGH_STAGES` slots."""
    parts = np.where(columns * size % (MOST_PIECES * span_bytes(128)) == 0, MOST_PIECES, 1)
    return slot_bytes * ENOUGH_STAGES + rows * columns * size // parts < ARCH.smem_per_block


def leave_as_boxes(
    rows: Any, columns: Any, terms: int, row: int, size: int, slot_bytes: Any, several: Any
) -> Any:
    """Tell whether tiles of `rows` x `columns`, ints or arrays, are worth stores of whole boxes.

    - `rows`, `columns` (int or array of int): of a tile of the output.
    - `terms`: how long a sum is, as `terms_by_output` counts it.
    - `row`: elements of a row of the output.
    - `size`: bytes of one.
    - `slot_bytes` (int or array of int): bytes of one slot of the ring.
    - `several` (bool or array of bool): whether thread blocks compute several tiles.
    """
    if row * size % CHUNK_BYTES:  # TMA takes no others
        return False & (columns > 0)
    small = rows * columns <= LARGEST_STORED
    whole = columns * size % span_bytes(128) == 0
    if row * size % SECTOR_BYTES == 0:
        room = _has_room(rows, columns, slot_bytes, size)
        return whole & small & room & several & (terms <= MOST_SHORT)
    return whole & ((small & (terms <= MOST_STORED)) | (terms <= MOST_SHALLOW))


def leave_behind_loads(tiles: Candidates, terms: int, slot_bytes: Any, several: Any) -> Any:
    """Find tiles whose 16-bit outputs leave by TMA behind the next tile's loads, of long sums."""
    room = _has_room(tiles.rows, tiles.columns, slot_bytes, MEASURED_BYTES)
    whole = (tiles.columns % BOX_COLUMNS == 0) & (tiles.by_rows == 1)
    return whole & room & several & (tiles.stages >= ENOUGH_STAGES) & (terms >= LEAST_DEEP)
