"""Find contiguous vector lanes in indices with quotients and remainders, which TVM misses."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

import tvm
from tvm import sym, tirx

from .build import cast_like
from .rewrite import mutate, substitute
from .walk import depends_on, is_const, static_int


def without_carry(index: Any, lane: Any, lanes: int) -> Any:
    """Take the lane out of quotients and remainders that no vector goes over the end of.

        (i * 2048 + j * 8 + lane) % 14336   ->   (i * 2048 + j * 8) % 14336 + lane
        (i * 2048 + j * 8 + lane) // 14336  ->   (i * 2048 + j * 8) // 14336

    TVM's simplifier does so for one product next to the lane, not for a sum of them.

    - `index` (Expr): an integer expression.
    - `lane` (Var): counts the lanes.
    - `lanes`: how many there are.
    """

    def visit(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        side, known = static_int(node.b), sym.Analyzer()
        start = known.simplify(substitute(node.a, {lane: 0}))
        own = cast_like(lane, node.a)
        if side is None or not is_const(known.simplify(node.a - start - own), 0):
            return node
        place = known.modular_set(start)
        step = gcd(int(place.coeff), side)
        if int(place.base) % step + lanes > step:
            return node
        rest = type(node)(start, node.b)
        return rest + own if isinstance(node, tirx.FloorMod) else rest

    return mutate(index, [(tirx.FloorDiv, visit), (tirx.FloorMod, visit)])


def first_element(indices: Sequence[Any], shape: Sequence[Any], lane: Any, lanes: int) -> Any:
    """Return where the elements of a vector begin that lie side by side; None for others.

        X[t // 98, (t * 8 + lane) % 784 // 28, (t * 8 + lane) % 28]   ->   [t // 98, t * 8 % 784]

    The last index returned counts the elements of all dimensions from there on: a vector may go
    over the end of a row.

    - `indices` (sequence of Expr): where an element lies.
    - `shape` (sequence of Expr): extents of the tensor.
    - `lane` (Var): counts the lanes.
    - `lanes`: how many there are.
    """
    *rows, last = indices
    analyzer = sym.Analyzer()
    analyzer.bind(lane, tvm.ir.Range(0, lanes))
    while (first := first_lane(last, lane, lanes, analyzer)) is None and rows:
        size = prod(shape[len(rows) + 1 :], start=shape[len(rows)])
        last = analyzer.simplify(rows.pop() * cast_like(size, last) + last)
    rows = [without_carry(x, lane, lanes) for x in rows]
    return None if first is None or depends_on(rows, [lane]) else [*rows, first]


def first_lane(value: Any, lane: Any, lanes: int, analyzer: sym.Analyzer) -> Any:
    """Return a value at the first lane, if it grows by one from lane to lane; None otherwise."""
    value = without_carry(value, lane, lanes)
    first = analyzer.simplify(substitute(value, {lane: 0}))
    step = analyzer.simplify(value - first - cast_like(lane, value))
    return first if is_const(step, 0) else None


def indices_from(first: Sequence[Any], offset: Any, shape: Sequence[Any]) -> list[Any]:
    """Return the indices of an element so many after the first one of a vector."""
    *rows, number = first
    number = number + cast_like(offset, number)
    inner: list[Any] = []
    step = 1  # one division each: of nested ones TVM does not prove that lanes are neighbours
    for extent in reversed(shape[len(first) :]):
        inner, step = [number // step % extent, *inner], step * extent
    return [*rows, number // step, *inner]
