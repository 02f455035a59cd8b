"""Attention of few queries: heads that share keys and values become rows of one tile.

    O[h, i] = softmax(Q[h, i] K[h // 4]^T) V[h // 4]
  ->
    O[4 h + r % 4, r // 4] = softmax(Q[4 h + r % 4, r // 4] K[h]^T) V[h]          4 rows a query

A tile has 64 rows, of which one query fills one: with its group's heads it fills more, and their
keys are read once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx

from tvm_hopper import ir

from .description import Attention, LoopAxis, StoredResult


def group_of(attention: Attention) -> tuple[int, int] | None:
    """Return which leading axis are heads that share keys, and how many do; None if none is."""
    for place, axis in enumerate(attention.leads):
        indices = [x for load in (attention.keys, attention.values) for x in load.indices]
        sizes = {_divisor(x, axis.var) for x in indices if ir.depends_on(x, [axis.var])}
        count = ir.static_int(axis.extent)
        size = count if not sizes else sizes.pop() if len(sizes) == 1 else None
        if size is not None and size > 1 and count is not None and count % size == 0:
            return place, size
    return None


def _divisor(index: Any, var: Any) -> int | None:
    """Return n of an index `var // n`, None for any other."""
    if isinstance(index, tirx.FloorDiv) and index.a.same_as(var):
        return ir.static_int(index.b)
    return None


def pack_heads(attention: Attention) -> Attention:
    """Let heads that share keys be rows; the attention itself where none do."""
    found = group_of(attention)
    if found is None:
        return attention
    place, size = found
    heads, row = attention.leads[place], attention.row
    group = LoopAxis(_like(heads.var), ir.simplify(heads.extent // size))
    rows = LoopAxis(_like(row.var), ir.simplify(row.extent * size))
    is_one = ir.is_const(row.extent, 1)
    member = rows.var if is_one else tirx.floormod(rows.var, ir.cast_like(size, rows.var))
    query = ir.cast_like(0, rows.var) if is_one else tirx.floordiv(rows.var, size)
    at = {heads.var: group.var * size + ir.cast_like(member, group.var), row.var: query}

    def inside(expr: Any) -> Any:
        return expr if expr is None else ir.substitute(expr, at)

    def shared(load: Any) -> Any:
        indices = [group.var if _divisor(x, heads.var) else x for x in load.indices]
        return tirx.BufferLoad(load.source, indices)

    def stored(result: StoredResult) -> StoredResult:
        return replace(
            result, indices=tuple(map(inside, result.indices)), value=inside(result.value)
        )

    return replace(
        attention,
        leads=(*attention.leads[:place], group, *attention.leads[place + 1 :]),
        row=rows,
        query=inside(attention.query),
        keys=shared(attention.keys),
        values=shared(attention.values),
        score=inside(attention.score),
        sink=inside(attention.sink),
        output=stored(attention.output),
        log_sum=None if attention.log_sum is None else stored(attention.log_sum),
    )


def _like(var: Any) -> Any:
    return ir.Var(var.name, ir.dtype_of(var))
