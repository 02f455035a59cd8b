"""The metadata of a sparse A: which threads hold it, which columns it stands for.

PTX ISA 9.1, 9.7.14.6.1 (storage, selector, meaningful values) and 9.7.14.6.2 (figures 119 to 147).
A chunk of A is four columns with two elements (f16, bf16, fp8, 8-bit integers), four pairs of
columns with two pairs (4-bit integers), or two columns with one element (tf32). A field of four
bits stands for each: two indices, the first in the low bits; of tf32 one index.
"""

from __future__ import annotations

import numpy as np

_GROUPS = 8  # groups of four lanes; group g has the rows g and g + 8
_TF32 = {0b0100: 0, 0b1110: 1}
_ORDERED = (0b0100, 0b1000, 0b1001, 0b1100, 0b1101, 0b1110)
_EQUAL = (0b0000, 0b0101, 0b1010, 0b1111)
_CHUNK = {"tf32": 2, "u4": 8, "s4": 8}  # columns; of the others 4


def fields_of_a_row(kind: str, depth: int) -> int:
    """Return the chunks of a row of A with `depth` columns."""
    return depth // _CHUNK.get(kind, 4)


def holders(kind: str, depth: int) -> int:
    """Return how many of four consecutive lanes hold metadata: 1, 2 or 4."""
    return fields_of_a_row(kind, depth) // 4


def gathered(words: np.ndarray, kind: str, depth: int, selector: int) -> np.ndarray:
    """Return the field of each chunk of A, shape (16, chunks).

    A row of four or eight chunks has 16 bits of a lane: row g the low half, row g + 8 the high one,
    and the next lane the next four chunks. Where elements are of 8 or 4 bits a lane has 32 bits of
    one row: lanes of even number row g, of odd number row g + 8, the next two the next columns.

    - `words` (np.ndarray): uint32, of all 32 lanes.
    - `kind`: type of A.
    - `depth`: k of the instruction.
    - `selector`: the first lane, the first pair of lanes, or 0.
    """
    count = holders(kind, depth)
    lanes = np.arange(count) + selector * count
    held = np.ascontiguousarray(words, np.uint32).reshape(_GROUPS, 4)[:, lanes]
    fields = held[:, :, None] >> np.arange(0, 32, 4, dtype=np.uint32) & np.uint32(15)
    out = np.empty((2, _GROUPS, fields_of_a_row(kind, depth)), np.int64)
    if kind in ("f16", "bf16", "tf32"):
        out[...] = fields.reshape(_GROUPS, count, 2, 4).transpose(2, 0, 1, 3).reshape(out.shape)
    else:
        out[...] = fields.reshape(_GROUPS, -1, 2, 8).transpose(2, 0, 1, 3).reshape(out.shape)
    return out.reshape(2 * _GROUPS, -1)


def meaningless(fields: np.ndarray, kind: str, ordered: bool) -> np.ndarray:
    """Return the values of fields that PTX gives no meaning, without repetition.

    - `ordered`: `mma.sp::ordered_metadata`, whose first index is the smaller one.
    """
    values = np.unique(fields)
    if kind == "tf32":
        return values[~np.isin(values, list(_TF32))]
    if ordered or kind in ("e4m3", "e5m2"):
        return values[~np.isin(values, _ORDERED)]
    return values[np.isin(values, _EQUAL)]


def positions_of(fields: np.ndarray, kind: str) -> np.ndarray:
    """Return the column of A of each stored element, shape (16, stored elements of a row)."""
    rows, chunks = fields.shape
    width = _CHUNK.get(kind, 4)
    first = np.arange(chunks) * width
    if kind == "tf32":
        return first + (fields == 0b1110)
    indices = np.stack([fields & 3, fields >> 2], 2)  # (rows, chunks, 2)
    together = width // 4  # columns that an index stands for
    columns = indices[..., None] * together + np.arange(together) + first[:, None, None]
    return columns.reshape(rows, -1)
