"""Dimensions of a tensor that an access walks through as through one.

  A: (B, S, K)      A[x // S, x % S, c]
->
  runs ((0, 1), (2,)): A has rows x, whatever S is
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvm_hopper import ir


def find_runs(
    indices: Sequence[Any], shape: Sequence[Any], strides: Sequence[Any]
) -> tuple[tuple[int, ...], ...]:
    """Return the dimensions in runs, each of which the indices walk through as through one.

    - `indices`, `shape`, `strides`: of the access and its tensor, for each dimension; strides in
      elements.
    """
    runs: list[tuple[int, ...]] = []
    first = 0
    while first < len(indices):
        last = _last_of_run(indices, shape, strides, first)
        runs.append(tuple(range(first, last + 1)))
        first = last + 1
    return tuple(runs)


def _last_of_run(
    indices: Sequence[Any], shape: Sequence[Any], strides: Sequence[Any], first: int
) -> int:
    """Return the last dimension that is walked through together with one, that one if none is."""
    if not is_digit(indices[first : first + 1]):
        return first
    for last in range(first + 1, len(indices)):
        extent = tirx.Cast("int64", ir.cast_like(shape[last], indices[last]))
        apart = _expr(strides[last - 1]) - _expr(strides[last]) * extent
        if not ir.is_const(ir.simplify(apart), 0):
            break
        if not is_digit([merge(indices[first : last + 1], shape[first : last + 1])]):
            return last
    return first


def merge(indices: Sequence[Any], shape: Sequence[Any]) -> Any:
    """Return the index along several dimensions, each of a given extent, made one."""
    first, *rest = indices
    for index, extent in zip(rest, shape[1:], strict=True):
        if not ir.is_const(extent, 1):  # along which an index is 0
            first = first * ir.cast_like(extent, first) + ir.cast_like(index, first)
    return ir.simplify(first)


def is_digit(indices: Sequence[Any]) -> bool:
    """Tell whether one of the indices is a quotient or a remainder."""
    return any(ir.find_all(list(indices), x) for x in (tirx.FloorDiv, tirx.FloorMod))


def _expr(stride: Any) -> Any:
    return tirx.IntImm("int64", stride) if isinstance(stride, int) else tirx.Cast("int64", stride)
