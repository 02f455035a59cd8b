"""Partial column sums over some rows, and the sum of the parts.

  S[j] += X[k, j]                                      k < 1000
->
  partial[j, share] += X[trip * 16 + share, j]         trip < 63, where the row exists
  S[j] += partial[j, share]

`partial` is an array of the function, in memory: it belongs to the built function. A thread's
columns are neighbours in it, so that it stores them by whole sectors of 32 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import s_tir, tirx
from tvm.tirx import IndexMap

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule

from .program import Part
from .tiles import flat


def leave_partial(sch: s_tir.Schedule, part: Part, count: int, flight: int | None = None) -> Any:
    """Split a sum of columns into parts of its rows.

    - `part`: the sum; the rest of it adds up rows of `count` partial sums.
    - `count`: parts.
    - `flight`: neighbouring rows that belong together.
    - returns: the block of the partial sums; its loops are columns, iterations, parts, and rows
      that belong together.
    """
    _number_rows(sch, part)
    *_, row = sch.get_loops(part.block)
    _, share, *_ = sch.split(row, [None, count, *([] if flight is None else [flight])])
    partial = sch.rfactor(share, len(sch.get(part.block).writes[0].source.shape))
    rest = len(sch.get(part.block).iter_vars)  # TVM puts the rest to reduce in front
    sch.reorder_block_iter_var(part.block, [*range(1, rest), 0])
    if len(part.spatial) > 1:
        _spread_columns(sch, part)
    columns = list(sch.get_loops(partial))[: rest - 1]
    if len(columns) > 1:
        sch.fuse(*columns)
    for number, region in enumerate(sch.get(partial).writes):
        shape = list(region.source.shape)[:-1]
        if sum(not ir.is_const(x, 1) for x in shape) > 1:
            sch.transform_layout(partial, ("write", number), _flat_columns(shape))
    return partial


def _spread_columns(sch: s_tir.Schedule, part: Part) -> None:
    """Let the rest of a sum count columns as the blocks after it do."""
    extents = [x.dom.extent for x in part.spatial]
    dtype = ir.dtype_of(part.spatial[0].var)

    def index(column: Any, share: Any) -> list[Any]:
        found: list[Any] = []
        for extent in reversed(extents[1:]):
            found, column = [column % extent, *found], column // extent
        return [column, *found, share]

    sch.transform_block_layout(part.block, IndexMap.from_func(index, index_dtype=dtype))


def _flat_columns(shape: list[Any]) -> Callable[..., list[Any]]:
    return lambda *i: [*flat(i[:-1], shape), i[-1]]


def pack_partial(sch: s_tir.Schedule, store: Any, vector: int) -> None:
    """Let a thread's columns be neighbours in memory, behind the number of the part.

    - `sch`: changed in place, when all that touches the partial sums has its loops.
    - `store` (SBlockRV): the block that writes them, indexed by columns, then by the part.
    - `vector`: columns of a thread; the last dimension of columns is a multiple of it.
    """
    if vector == 1:
        return

    shape = list(sch.get(store).writes[0].source.shape)[:-1]
    last = max(k for k, x in enumerate(shape) if not ir.is_const(x, 1))  # after it: kept ones

    def index(*i: Any) -> list[Any]:
        outer, column, ones, part = i[:last], i[last], i[last + 1 : -1], i[-1]
        return [*outer, column // vector, *ones, part, column % vector]

    sch.transform_layout(store, ("write", 0), index)


def _number_rows(sch: s_tir.Schedule, part: Part) -> None:
    """Let a block number rows by one variable, and columns of several dimensions by another.

    Cut into strips, a column of several would be a quotient and a remainder: TVM forgets then that
    some strips end early, and more would be stored and read again than there is.
    """
    axes = list(part.node.iter_vars)
    first = len(axes) - len(part.reduced)
    is_flat = len(part.spatial) < 2
    if len(part.reduced) == 1 and len(part.loops) == len(axes) and is_flat:
        return
    extents = [x.dom.extent for x in axes]
    dtype = ir.dtype_of(axes[0].var)

    def index(*i: Any) -> list[Any]:
        columns = i[:first] if is_flat else flat(i[:first], extents[:first])
        return [*columns, *(flat(i[first:], extents[first:]) or [tirx.IntImm(dtype, 0)])]

    numbered = IndexMap.from_func(index, len(axes), index_dtype=dtype)
    sch.transform_block_layout(part.block, numbered)


def leave_groups(sch: s_tir.Schedule, reductions: list[Part], group: int) -> frozenset[str]:
    """Make reductions to one value ones of groups of rows, and of the row that those leave.

    - `reductions`: each over all dimensions, the same ones.
    - `group`: neighbours along the first dimension: a divisor of it.
    - returns: names of the blocks that reduce groups.
    """
    names = []
    for part in reductions:
        kept = len(part.outputs[0].shape)  # of one element each
        loops = sch.get_loops(part.block)
        outer, _ = sch.split(loops[len(loops) - len(part.reduced)], [None, group])
        partial = sch.rfactor(outer, kept)
        for block, first in ((partial, kept), (part.block, kept)):  # TVM puts its own in front
            count = len(sch.get(block).iter_vars)
            order = [*range(1, first + 1), 0, *range(first + 1, count)]
            sch.reorder_block_iter_var(block, order)
        names.append(str(sch.get(partial).name_hint))
    return frozenset(names)


def leave_columns(sch: s_tir.Schedule, parts: list[Part]) -> frozenset[str]:
    """Make a reduction to one value one of columns, and one of the row that they leave.

    - `parts`: all blocks; of the reductions each is over all dimensions.
    - returns: names of the blocks that reduce columns.
    - raises ScheduleError: one is over a single dimension.
    """
    names = []
    for part in parts:
        if not part.loops:  # TVM's rfactor takes a block without loops for the one that it splits
            sch.add_unit_loop(part.block)
    for part in parts:
        if not part.reduced:
            continue
        *outer, last = sch.get_loops(part.block)
        if len(part.reduced) < 2:
            count = ir.static_int(part.loops[-1].extent) or part.loops[-1].extent
            raise cannot_schedule(
                f"block {part.name}",
                f"a reduction of {count} elements of one dimension to one value",
                "two dimensions or more",
                "reshape the tensor, or schedule it by hs.row_reduction if it is one row",
            )
        sch.reorder(last, *outer)
        column = sch.rfactor(last, len(part.outputs[0].shape))
        names.append(str(sch.get(column).name_hint))
    return frozenset(names)
