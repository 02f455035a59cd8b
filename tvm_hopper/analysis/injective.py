"""Decide whether a store sends different iterations to different elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir as tvm_ir, sym, tirx

from tvm_hopper import ir

from .at_places import at_places

SIGNED = ("int32", "int64")
MOST_COUNTED = 1 << 15  # iterations that are counted one by one, in some milliseconds


def is_injective(
    indices: Sequence[Any], extents: Mapping[ir.Var, Any], predicate: Any = True
) -> bool:
    """Tell whether no two iterations that satisfy a predicate have the same indices.

    - `indices` (sequence of expression): one an output dimension.
    - `extents` (mapping): of each iteration variable, which runs from 0; any other variable is a
      constant.
    - `predicate` (expression): under which an iteration counts.
    - returns: False also where it could not be proven.
    """
    extents = _bounded(extents, predicate)
    moving = {var: extent for var, extent in extents.items() if not ir.is_const(extent, 1)}
    still = {var: 0 for var in extents if var not in moving}
    indices = _with_digits_joined([ir.substitute(index, still) for index in indices])
    if _is_mixed_radix(indices, moving):
        return True
    domain = {var: tvm_ir.Range.from_min_extent(0, extent) for var, extent in moving.items()}
    # What is injective on the whole domain is so on a part of it; TVM takes some maps only with
    # the predicate, `i * n + j if j < n`, and some only without it.
    for condition in (True, ir.substitute(predicate, still)):
        try:
            iter_map = sym.detect_iter_map(indices, domain, condition, "bijective")
        except (tvm.error.InternalError, ValueError):  # some maps make it divide by 0 or overflow
            continue
        if len(iter_map.indices):
            return True
    return _never_meet(indices, moving)


def _with_digits_joined(indices: Sequence[Any]) -> list[Any]:
    """Put `x` in place of `x // n` and `x % n`, which tell it apart whatever `n` is."""
    joined = list(indices)
    for high in indices:
        for low in indices:
            if (
                isinstance(high, tirx.FloorDiv)
                and isinstance(low, tirx.FloorMod)
                and tvm_ffi.structural_equal(high.a, low.a)
                and tvm_ffi.structural_equal(high.b, low.b)
            ):
                joined = [x for x in joined if not x.same_as(high) and not x.same_as(low)]
                joined.append(high.a)
    return joined


def _never_meet(indices: Sequence[Any], extents: Mapping[ir.Var, Any]) -> bool:
    """Tell by counting, where a proof has to know what a simplifier made of divisions.

    `(t * 64 + x) // 352`, `(t * 2 + x // 32) % 11`, `x % 32` are such.
    """
    known = [ir.static_int(x) for x in extents.values()]
    sizes = [x for x in known if x is not None]
    if len(sizes) < len(known) or not 0 < prod(sizes) <= MOST_COUNTED:
        return False
    axes = np.meshgrid(*(np.arange(size) for size in sizes), indexing="ij")
    values = {var: axis.ravel() for var, axis in zip(extents, axes, strict=True)}
    try:
        places = [np.broadcast_to(at_places(x, values), prod(sizes)) for x in indices]
    except KeyError:  # another variable, or another operation
        return False
    numbers = np.zeros(prod(sizes), np.int64)
    for place in places:
        first_numbers = np.unique(place, return_inverse=True)[1]
        numbers = np.unique(numbers * prod(sizes) + first_numbers, return_inverse=True)[1]
    return int(numbers.max()) + 1 == prod(sizes)


def _bounded(extents: Mapping[ir.Var, Any], predicate: Any) -> Mapping[ir.Var, Any]:
    """Cut extents that terms of a predicate bound: `t * 3 + b < 2` leaves `t` 0, `b` 0 and 1."""
    sizes = dict(extents)
    for term in ir.conjuncts(predicate):
        limit = ir.static_int(term.b) if isinstance(term, tirx.LT) else None
        if limit is None:
            continue
        steps = _linear(term.a, extents)
        if not steps or min(steps.values()) <= 0 or not _starts_at_zero(term.a, extents):
            continue
        for var, step in steps.items():
            size = ir.static_int(sizes[var])
            if size is not None:
                sizes[var] = min(size, max(-(-limit // step), 1))
    return sizes


def _starts_at_zero(expr: Any, extents: Mapping[ir.Var, Any]) -> bool:
    return ir.is_zero(ir.simplify(ir.substitute(expr, dict.fromkeys(extents, 0))))


def _is_mixed_radix(indices: Sequence[Any], extents: Mapping[ir.Var, Any]) -> bool:
    """Tell whether each variable can be read off sums in which each step exceeds all smaller ones.

    For what TVM's iteration maps do not know: gaps (`i * 1000 + j`), negative steps, casts, and
    dimensions that say the same twice.
    """
    sums = [_linear(ir.simplify(index), extents) for index in indices]
    known: set[ir.Var] = set()
    while True:
        readable = {
            var
            for steps in sums
            if steps is not None
            for rest in [{v: s for v, s in steps.items() if v not in known and s}]
            if _is_positional(rest, extents)
            for var in rest
        }
        if not readable - known:
            return len(known) == len(extents)
        known |= readable


def _is_positional(steps: Mapping[ir.Var, int], extents: Mapping[ir.Var, Any]) -> bool:
    reach: int | None = 0  # of all smaller steps together; None if only run time knows
    for var, step in sorted(steps.items(), key=lambda item: abs(item[1])):
        if reach is None or abs(step) <= reach:
            return False
        extent = ir.static_int(extents[var])
        reach = None if extent is None else reach + abs(step) * (extent - 1)
    return True


def _linear(expr: Any, extents: Mapping[ir.Var, Any]) -> dict[ir.Var, int] | None:
    """Return the step of each iteration variable in a sum with constant steps, else None."""
    if not ir.depends_on(expr, list(extents)):
        return {}
    if isinstance(expr, tirx.Cast) and {ir.dtype_of(expr), ir.dtype_of(expr.value)} <= {*SIGNED}:
        wide = ir.dtype_of(expr) == "int64" or ir.dtype_of(expr.value) == "int32"
        return _linear(expr.value, extents) if wide else None
    if isinstance(expr, ir.Var):
        return {expr: 1}
    if isinstance(expr, (tirx.Add, tirx.Sub)):
        left, right = _linear(expr.a, extents), _linear(expr.b, extents)
        if left is None or right is None:
            return None
        sign = 1 if isinstance(expr, tirx.Add) else -1
        return {v: left.get(v, 0) + sign * right.get(v, 0) for v in {**left, **right}}
    if isinstance(expr, tirx.Mul):
        factor, sums = ir.static_int(expr.b), expr.a
        if factor is None:
            factor, sums = ir.static_int(expr.a), expr.b
        steps = _linear(sums, extents)
        if factor is None or steps is None:
            return None
        return {var: factor * step for var, step in steps.items()}
    return None
