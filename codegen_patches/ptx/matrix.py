"""ldmatrix, stmatrix and movmatrix: 8x8 matrices of 16-bit elements.

PTX ISA 9.1, 9.7.14.5.16 and 17.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.script import tirx as T


def store(row: Any, words: Sequence[Any], transposed: bool = False) -> Any:
    """Store one matrix for each of a warp's `words` (`stmatrix`); all 32 lanes execute it.

    - `row`: pointer to the 16 bytes of a row in this thread block's shared memory, a multiple of
      16: lane l points to row l % 8 of matrix l // 8. Lanes beyond the matrices point anywhere.
    - `words`: 1, 2 or 4 values of 32 bits: lane l holds elements 2 (l % 4) and the next one of row
      l // 4 of each matrix; of a column, if `transposed`.
    """
    form = ".trans" if transposed else ""
    return T.ptx[f"stmatrix.sync.aligned.m8n8.x{len(words)}{form}.shared.b16"](row, *words)


def turn(out: Any, word: Any) -> Any:
    """Transpose a matrix between the registers of a warp (`movmatrix`); all 32 lanes execute it.

    - `out`, `word`: a register of 32 bits each: lane l holds elements 2 (l % 4) and the next one of
      row l // 4, in `out` of the transposed matrix.
    """
    return T.ptx["movmatrix.sync.aligned.m8n8.trans.b16"](out, word)
