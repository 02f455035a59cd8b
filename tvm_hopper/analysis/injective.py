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

from .access import step_of
from .at_places import WIDENED, at_places
from .divisors import divisor, terms_of

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
    bounded = _bounded(extents, predicate)
    # a bound may cut through digits: of 45 rows, row // 16 has no whole number
    is_cut = any(ir.static_int(bounded[x]) != ir.static_int(extents[x]) for x in extents)
    return _is_proven(indices, bounded, predicate) or (
        is_cut and _is_proven(indices, extents, predicate)
    )


def _is_proven(indices: Sequence[Any], extents: Mapping[ir.Var, Any], predicate: Any) -> bool:
    still = {var: 0 for var, extent in extents.items() if ir.is_const(extent, 1)}
    terms = [*ir.conjuncts(ir.substitute(predicate, still))]
    indices = _with_digits_joined([ir.substitute(index, still) for index in indices])
    indices, left = _untold(indices, {x: n for x, n in extents.items() if x not in still})
    return all(
        _tells(
            [x for x in indices if ir.depends_on(x, list(group))],
            {var: left[var] for var in group},
            ir.conjunction(x for x in terms if not ir.depends_on(x, [*(extents.keys() - group)])),
        )
        for group in _groups(indices, left)
    )


def _untold(
    indices: Sequence[Any], extents: Mapping[ir.Var, Any]
) -> tuple[list[Any], Mapping[ir.Var, Any]]:
    """Return the variables that are no part of an index by themselves, and what follows them."""
    analyzer = sym.Analyzer()
    for var, extent in extents.items():
        analyzer.bind(var, tvm_ir.Range.from_min_extent(0, extent))
    parts = [x for index in indices for x in _parts(ir.simplify(index), extents, analyzer)]
    told = {var: 0 for var in extents if any(var.same_as(x) for x in parts)}
    if not told:
        return parts, extents
    left = {var: extent for var, extent in extents.items() if var not in told}
    return _untold([_apart(x, told, list(left)) for x in parts], left)


def _apart(part: Any, told: Mapping[ir.Var, int], left: list[ir.Var]) -> Any:
    """Leave told variables out of a part that adds them; elsewhere they stay, as constants."""
    rest = ir.substitute(part, told)
    return part if ir.depends_on(ir.simplify(part - rest), left) else rest


def _parts(index: Any, extents: Mapping[ir.Var, Any], analyzer: sym.Analyzer) -> list[Any]:
    """Cut a sum where its rest is shorter than a step: `a * 12 + b % 12` tells `a` and `b % 12`."""
    if isinstance(index, tirx.Cast) and (ir.dtype_of(index.value), ir.dtype_of(index)) == WIDENED:
        return _parts(ir.simplify(index.value), extents, analyzer)
    if isinstance(index, tirx.Mul) and ir.static_int(index.b):
        return _parts(index.a, extents, analyzer)
    terms = [x for x in terms_of(index) if ir.depends_on(x, list(extents))]
    for step in sorted({divisor(x) for x in terms} - {0}):
        low = [x for x in terms if divisor(x) % step]
        reach = analyzer.const_int_bound(_sum(low))
        if low and reach.max_value - reach.min_value < step:
            high = [x for x in terms if divisor(x) % step == 0]
            return [x for part in (high, low) for x in _parts(_sum(part), extents, analyzer)]
    return [_sum(terms)] if terms else []


def _sum(terms: list[Any]) -> Any:
    return sum(terms[1:], terms[0]) if terms else tirx.IntImm("int32", 0)


def _groups(indices: Sequence[Any], extents: Mapping[ir.Var, Any]) -> list[set[ir.Var]]:
    """Return variables in groups of which no index follows two; each tells those of its own."""
    groups = [{var} for var in extents]
    for index in indices:
        met = [x for x in groups if ir.depends_on(index, list(x))]
        groups = [x for x in groups if not any(x is y for y in met)]
        groups += [set().union(*met)] if met else []
    return groups


def _tells(indices: Sequence[Any], extents: Mapping[ir.Var, Any], predicate: Any) -> bool:
    """Prove by TVM's iteration maps, or count."""
    domain = {var: tvm_ir.Range.from_min_extent(0, extent) for var, extent in extents.items()}
    # What is injective on the whole domain is so on a part of it; TVM takes some maps only with
    # the predicate, `i * n + j if j < n`, and some only without it.
    for condition in (True, predicate):
        try:
            iter_map = sym.detect_iter_map(indices, domain, condition, "bijective")
        except (tvm.error.InternalError, ValueError):  # some maps make it divide by 0 or overflow
            continue
        if len(iter_map.indices):
            return True
    return _never_meet(indices, extents)


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
        steps = {var: step_of(term.a, var) for var in extents if ir.depends_on(term.a, [var])}
        first = ir.simplify(ir.substitute(term.a, dict.fromkeys(extents, 0)))
        if not ir.is_zero(first) or not all(step and step > 0 for step in steps.values()):
            continue
        for var, step in steps.items():
            size = ir.static_int(sizes[var])
            if size is not None:
                sizes[var] = min(size, max(-(-limit // (step or 1)), 1))
    return sizes
