"""Vectors of rows that begin at any element.

  X[i, j]                        float16, 50257 elements a row: row 1 begins 14 bytes after a vector
->
  vectors of 8 elements that cover the row, the first of which begins in the row before

The schedule deals out `shift` elements more than a row has, and accesses elements one by one.
`transforms/memory_bound/align_row_vectors.py` moves each row to the start of the vector that it
begins in, and makes vectors of those accesses.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tvm_hopper.schedule.memory_bound.arrays import Read
from tvm_hopper.schedule.memory_bound.numbers import is_numbered
from tvm_hopper.schedule.memory_bound.program import Part, is_plain, results
from tvm_hopper.schedule.memory_bound.tiles import sum_bytes, whole_vector, widest_vector

from .recognize import RowProgram

MIN_PLAIN_BYTES = 8  # of a vector that divides rows: with as many, rows need no shift
MIN_VECTORS = 4  # of a row that is shifted


def choose_vector(
    sch: s_tir.Schedule,
    parts: list[Part],
    rows: RowProgram,
    reads: list[Read],
    tensors: list[Any],
    asked: int | None,
) -> tuple[int, int]:
    """Return the elements of a vector, and by how many elements a row may begin after one.

    - `sch`: only read.
    - `parts`: the program, inlined.
    - `rows`: its rows.
    - `reads`: tensors that are loaded by vectors.
    - `tensors` (list of Buffer): what is accessed by vectors: those, and the results in memory.
    - `asked`: the requested vector.
    """
    of_rows = [x.tensor for x in reads if x.has_rows]
    covering = widest_vector(0, tensors, asked) if of_rows else 1
    if rows.columns % covering and _is_packed(sch, parts, rows, of_rows):
        plain = widest_vector(rows.columns, tensors) * max(sum_bytes([x]) for x in tensors)
        is_slow = plain < MIN_PLAIN_BYTES and rows.columns >= MIN_VECTORS * covering
        if covering == asked or (asked is None and is_slow):
            return covering, covering - 1
    where = f" for rows of {rows.columns} elements"
    return whole_vector("RowReductionConfig", where, rows.columns, tensors, asked), 0


def _is_packed(
    sch: s_tir.Schedule, parts: list[Part], rows: RowProgram, of_rows: list[Any]
) -> bool:
    """Tell whether rows lie one after another, in the order of their numbers, in all tensors."""
    stored = results(sch, parts)
    for part in parts:
        if part.name not in rows.full:
            continue
        if not any(x.same_as(y) for x in part.outputs for y in stored):
            continue
        variables = [x.var for x in part.spatial]
        if not is_plain(part.store, variables) and not is_numbered(
            part.store, part, list(part.spatial)
        ):
            return False
        of_rows = [*of_rows, *part.outputs]
    return not any(getattr(x.ty, "strides", None) for x in of_rows)
