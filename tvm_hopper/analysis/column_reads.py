"""Columns of an accumulator that an epilogue takes from several places.

    for i, j in grid(64, 128):
        D[i, j] = f(acc[i, j // 8 * 16 + j % 8], acc[i, j // 8 * 16 + j % 8 + 8])
  ->
    columns 0 to 127: ColumnRead(start=0, step=16), ColumnRead(start=8, step=16)

    for i, j in grid(64, 128):
        D[i, j] = acc[i, j] + if_then_else(j < 64, -acc[i, j + 64], acc[i, j - 64])
  ->
    columns 0 to 63: ColumnRead(0, 8), ColumnRead(64, 8)
    columns 64 to 127: ColumnRead(64, 8), ColumnRead(0, 8)

Registers come in eights of columns, of which a thread has one pair of neighbours. Two reads are of
one thread where both begin at multiples of eight, or name the two of a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx

from tvm_hopper import ir

from .at_places import at_places
from .divisors import divides

COLUMNS = 8  # that registers come in
Pair = tuple[int | None, int | None]
UNREAD: Pair = (None, None)
Eight = tuple[int, Pair]  # the first of the columns that eight of a nest read, and which of a pair


@dataclass(frozen=True)
class ColumnRead:
    """The g-th eight columns of a nest are those of the accumulator from `start + g * step` on.

    `pair` says which of two neighbours the first and the second one read: None, if it reads none.
    """

    start: Any
    step: int
    pair: Pair = (0, 1)

    def first(self, g: Any) -> Any:
        """Return the accumulator's column that the g-th eight begin with."""
        return ir.simplify(self.start + g * self.step)

    def neighbour(self, e: Any) -> Any:
        """Return which of a pair the e-th of two neighbours reads, where it reads any."""
        known = [x for x in self.pair if x is not None]
        one, other = (known[0] if x is None else x for x in self.pair)
        return one + (other - one) * e


@dataclass(frozen=True)
class ColumnSegment:
    """Columns of a nest, from `begin` to `end`, that take all branches and reads alike."""

    begin: int
    end: int
    reads: dict[str, ColumnRead]  # by the index


@dataclass(frozen=True)
class ColumnReads:
    """How a nest reads columns: in segments, or the index of one that another thread holds."""

    segments: tuple[ColumnSegment, ...]
    stray: Any = None


@dataclass
class _Reached:
    """An index of columns, and where the nest comes to it."""

    index: Any
    where: Any


def read_columns(value: Any, is_own: Callable[[Any], bool], loop: ir.For) -> ColumnReads:
    """Find out which columns of an accumulator a statement reads, for each of its own.

    - `value` (expression): what is computed.
    - `is_own` (callable): selects the loads of accumulators; the last index is a column.
    - `loop`: the loop over columns, from 0 on.
    """
    reads, choices = _reached(value, is_own, loop)
    extent = ir.static_int(loop.extent) or 0
    if extent % COLUMNS or not extent or not ir.is_const(loop.min, 0):
        return ColumnReads((), next((x.index for x in reads.values()), loop.loop_var))
    starts: dict[str, Any] = {}
    found: dict[str, list[Eight]] = {}
    for name, read in reads.items():
        starts[name] = start = ir.simplify(ir.substitute(read.index, {loop.loop_var: 0}))
        at_zero = ir.static_int(start)
        if at_zero is None and not divides(COLUMNS, start):
            return ColumnReads((), read.index)
        columns = _columns(ir.simplify(read.index - start), loop, extent)
        eights = None if columns is None else _in_eights(columns + (at_zero or 0), read.where)
        if eights is None:
            return ColumnReads((), read.index)
        starts[name] = 0 if at_zero is not None else start
        found[name] = eights
    return ColumnReads(tuple(_segments(found, starts, choices, extent // COLUMNS)))


def _reached(
    value: Any, is_own: Callable[[Any], bool], loop: ir.For
) -> tuple[dict[str, _Reached], list[Any]]:
    """Return all indices with the columns that come to them, and the conditions on columns."""
    extent = ir.static_int(loop.extent) or 0
    reads: dict[str, _Reached] = {}
    choices: list[Any] = []

    def walk(expr: Any, where: Any) -> None:
        def choose(condition: Any, yes: Any, no: Any) -> Any:
            walk(condition, where)
            taken = _columns(ir.simplify(condition), loop, extent)
            if taken is not None:
                choices.append(taken)
            walk(yes, where if taken is None else where & taken)
            walk(no, where if taken is None else where & ~taken)
            return tvm_ffi.WalkResult.SKIP

        def load(node: Any) -> None:
            if is_own(node):
                index = node.indices[-1]
                read = reads.setdefault(str(index), _Reached(index, np.zeros(extent, bool)))
                read.where = read.where | where

        ir.visit(
            expr,
            [
                (tirx.Select, lambda x: choose(x.condition, x.true_value, x.false_value)),
                (ir.Call, lambda x: choose(*x.args) if ir.is_choice(x) else None),
                (ir.TensorLoad, load),
            ],
        )

    walk(value, np.ones(extent, bool))
    return reads, choices


def _columns(expr: Any, loop: ir.For, extent: int) -> Any:
    """Return an expression's value for each column; None if it depends on anything else."""
    try:
        found = at_places(expr, {loop.loop_var: np.arange(extent)})
    except KeyError:
        return None
    return np.broadcast_to(found, extent)


def _in_eights(columns: Any, where: Any) -> list[Eight] | None:
    """Return for each eight where those begin that it reads; None if another thread has some."""
    read, used = (np.reshape(x, (-1, COLUMNS)) for x in (columns, where))
    lanes = np.arange(COLUMNS)

    def agreed(values: Any, among: Any) -> Any:
        """Return the one value of each eight among some of its columns, -1 if there are none."""
        most = np.where(among, values, -1).max(axis=1)
        return most if (~among | (values == most[:, None])).all() else None

    first = agreed(read // COLUMNS * COLUMNS, used)
    pair = [agreed(read % 2, used & (lanes % 2 == x)) for x in (0, 1)]
    is_own = ~used | (read % COLUMNS // 2 == lanes // 2)
    if not is_own.all() or first is None or any(x is None for x in pair):
        return None
    one, other = ([None if x < 0 else x for x in y.tolist()] for y in pair)
    return list(zip(first.tolist(), zip(one, other, strict=True), strict=True))


def _segments(
    found: dict[str, list[Eight]], starts: dict[str, Any], choices: list[Any], count: int
) -> Iterator[ColumnSegment]:
    """Join eights that take the same branches and read columns in equal steps."""
    taken = [x.reshape(-1, COLUMNS) for x in choices]

    def is_like(g: int, begin: int) -> bool:
        same = all((x[g] == x[begin]).all() for x in taken)
        same = same and all(x[g][1] == x[begin][1] for x in found.values())
        return same and all(step(x, g - 1) == step(x, begin) for x in found.values())

    def step(read: list[Eight], g: int) -> int:
        return read[g + 1][0] - read[g][0]

    begin = 0
    for g in range(1, count + 1):
        if g < count and is_like(g, begin):
            continue
        reads = {
            name: ColumnRead(
                ir.simplify(starts[name] + read[begin][0]),
                step(read, begin) if g - begin > 1 else COLUMNS,
                read[begin][1],
            )
            for name, read in found.items()
            if read[begin][1] != UNREAD
        }
        yield ColumnSegment(begin * COLUMNS, g * COLUMNS, reads)
        begin = g


def take_branches(value: Any, condition_of: Callable[[Any], bool | None]) -> Any:
    """Return a value without the branches that are never taken.

    `condition_of` returns what a condition is, None where it is no constant.
    """

    def choose(node: Any, mutator: Any) -> Any:
        is_select = isinstance(node, tirx.Select)
        if not is_select and not ir.is_choice(node):
            return mutator.default_mutate(node)
        parts = (node.condition, node.true_value, node.false_value) if is_select else node.args
        known = condition_of(parts[0])
        if known is None:
            return mutator.default_mutate(node)
        return take_branches(parts[1] if known else parts[2], condition_of)

    return ir.mutate(value, [(tirx.Select, choose), (ir.Call, choose)])


def same_for_all(condition: Any, loop: ir.For) -> bool | None:
    """Return what a condition is for all iterations of a loop; None if that is not known."""
    found = _columns(ir.simplify(condition), loop, ir.static_int(loop.extent) or 0)
    return bool(found[0]) if found is not None and (found == found[0]).all() else None
