"""Split loops over an accumulator's columns where its epilogue reads others at another distance.

Part of LowerWgmma: afterwards a loop reads each place at one distance, in registers of a thread.

    for i, j in grid(64, 128):
        C[m + i, n + j] = acc[i, j] + if_then_else(j < 64, -acc[i, j + 64], acc[i, j - 64])
  ->
    for i, j in grid(64, 64): C[m + i, n + j] = acc[i, j] - acc[i, j + 64]
    for i, j in grid(64, 64): C[m + i, n + 64 + j] = acc[i, j + 64] + acc[i, j]

Not here: the two of a pair, which are two statements of one loop (fragment_loops.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.analysis.column_reads import (
    ColumnSegment,
    read_columns,
    same_for_all,
    take_branches,
)
from tvm_hopper.requests.keys import WGMMA


@dataclass(frozen=True)
class ColumnSplit:
    """A nest over elements of accumulators, its loop over columns and the segments of that."""

    nest: ir.For
    column: ir.For
    segments: tuple[ColumnSegment, ...]


def plan_columns(kernel: ir.For) -> tuple[ColumnSplit, ...]:
    """Find nests that read an accumulator at several distances; others are left as they are."""
    products = ir.find_blocks(kernel, WGMMA)
    sums = [x.source for block in products for x in block.writes]
    splits: dict[Any, ColumnSplit] = {}
    for loop in ir.find_all(kernel, ir.For, lambda x: x.kind != ir.ForKind.THREAD_BINDING):
        loops, body = ir.loop_nest(loop)
        if isinstance(body, ir.SBlockRealize) and body not in splits:
            found = _split(loops, body, sums)
            if found is not None:
                splits[body] = found
    return tuple(splits.values())


def _split(
    loops: list[ir.For], realize: ir.SBlockRealize, sums: Sequence[ir.Var]
) -> ColumnSplit | None:
    store = realize.block.body
    if not isinstance(store, ir.BufferStore):
        return None

    def is_own(load: Any) -> bool:
        return any(load.source.same_as(x) for x in sums)

    loads = ir.find_all(store.value, ir.TensorLoad, is_own)
    indices = {str(x.indices[-1]): x.indices[-1] for x in loads}
    columns = [x for x in loops if ir.depends_on(list(indices.values()), [x.loop_var])]
    if len(indices) < 2 or len(columns) != 1 or any(store.buffer.same_as(x) for x in sums):
        return None
    found = read_columns(store.value, is_own, columns[0])
    first, *others = found.segments or (None,)
    if first is None or (not others and len(first.reads) == len(indices)):
        return None
    return ColumnSplit(loops[0], columns[0], found.segments)


def split_columns(kernel: ir.For, splits: tuple[ColumnSplit, ...]) -> ir.Stmt:
    """Write a nest for each segment."""
    planned = {x.nest: ir.seq([_segment(x, y) for y in x.segments]) for x in splits}
    return ir.replace_nodes(kernel, ir.For, planned)


def _segment(split: ColumnSplit, segment: ColumnSegment) -> ir.Stmt:
    """Return the nest over the columns of one segment."""
    var = split.column.loop_var
    extent = ir.cast_like(segment.end - segment.begin, var)

    def taken(store: ir.BufferStore) -> ir.BufferStore:
        loop = ir.with_body(split.column, store, extent=extent)
        value = take_branches(store.value, lambda x: same_for_all(x, loop))
        return ir.BufferStore(store.buffer, value, list(store.indices))

    begin = ir.cast_like(segment.begin, var)
    body = ir.substitute(split.column.body, {var: var + begin})
    column = ir.with_body(split.column, ir.replace(body, ir.BufferStore, taken), extent=extent)
    return ir.fresh_variables(ir.replace_nodes(split.nest, ir.For, {split.column: column}))
