"""Parse predicates of the form "these indices are below these bounds"."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import sym, tirx

from tvm_hopper import ir

from .at_places import at_places
from .contraction import summands
from .divisors import divisor, terms_of

MAX_STEP = 8  # that an index may take with what bounds it
MOST_PLACES = 1 << 20  # at which two predicates are compared one by one


@dataclass(frozen=True)
class Bounds:
    """Bounds of indices that a predicate implies.

    - `below`: for each index an exclusive upper bound, None for an index that the predicate leaves
      alone.
    - `from_zero`: for each index whether the predicate says that it is not negative.
    """

    below: tuple[Any, ...]
    from_zero: tuple[bool, ...]


def find_bounds(
    condition: Any, indices: tuple[Any, ...], shape: tuple[Any, ...], loops: tuple[ir.For, ...]
) -> Bounds | None:
    """Return the bounds that a predicate sets to indices, or None if it says anything else.

    Needed where hardware fills by the bounds of a tensor map: any other predicate would be dropped.

    - `condition` (Expr): the predicate, a conjunction.
    - `indices` (tuple of Expr): what may be bounded.
    - `shape` (tuple of Expr): the bounds that are tried first, since they may be spelled in ways
      that need a proof.
    - `loops`: the loops around; no bound depends on their variables.
    - returns: the bounds of each index.
    """
    analyzer = sym.Analyzer()
    for loop in loops:
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    usual = _bounds_by_shape(indices, shape)
    bounds: list[Any] = [None] * len(indices)
    from_zero = [False] * len(indices)
    understood: list[Any] = []
    unclear: list[Any] = []
    for term in (_as_order(x, analyzer) for x in ir.conjuncts(condition)):
        low = _find_not_negative(term, indices, analyzer)
        found = None if low else _bounded(term, indices, shape, usual, loops, analyzer)
        if found is None and not low:
            axis = _bounded_beside([], term, usual, loops)
            found = None if axis is None else (axis, shape[axis])
        for at in low:
            from_zero[at] = True
        if found is not None:
            bounds[found[0]] = _lower(bounds[found[0]], found[1])
        (understood if low or found else unclear).append(term)
    left = [(a, x) for a, x in usual if bounds[a] is None]
    for term in unclear:
        if (axis := _bounded_beside(understood, term, left, loops)) is None:
            return None
        bounds[axis] = shape[axis]
    return Bounds(tuple(bounds), tuple(from_zero))


def _bounded(
    term: Any,
    indices: tuple[Any, ...],
    shape: tuple[Any, ...],
    usual: list[tuple[int, Any]],
    loops: tuple[ir.For, ...],
    analyzer: sym.Analyzer,
) -> tuple[int, Any] | None:
    """Return the axis that a term bounds by itself, and its bound."""
    axis = next((a for a, bound in usual if _same_bound(term, bound, analyzer)), None)
    if axis is not None:
        return axis, shape[axis]
    return _bound(term, indices, [loop.loop_var for loop in loops])


def _bounded_beside(
    others: list[Any], term: Any, bounds: list[tuple[int, Any]], loops: tuple[ir.For, ...]
) -> int | None:
    """Return the axis whose bound a term says where others hold: TVM uses these to rewrite it.

    `y < 5` becomes `8 * y + x < 37` beside `x < 5`.
    """
    known = ir.conjunction(others)
    both = tirx.And(term, known)
    same = (a for a, x in bounds if _same_places(both, tirx.And(x, known), loops))
    return next(same, None)


def _lower(known: Any, bound: Any) -> Any:
    """Return the lower of two bounds of an index, of which the first may be none."""
    if known is None or _equal(known, bound):
        return bound
    return tirx.min(known, ir.cast_like(bound, known))


def _bounds_by_shape(indices: tuple[Any, ...], shape: tuple[Any, ...]) -> list[tuple[int, Any]]:
    """Return that indices are within a shape, each with its axis."""
    orders = [
        (axis, index < ir.cast_like(extent, index))
        for axis, (index, extent) in enumerate(zip(indices, shape, strict=True))
    ]
    return [(axis, x) for axis, x in orders if isinstance(x, tirx.LT)]  # 0 < 1 is a constant


def _as_order(term: Any, analyzer: sym.Analyzer) -> Any:
    """Write a term that an index is at one end of its range as the order that it was."""
    if isinstance(term, tirx.EQ):
        if analyzer.can_prove(term.a <= term.b):
            return term.a >= term.b
        if analyzer.can_prove(term.a >= term.b):
            return term.a <= term.b
    return term


def _bound(term: Any, indices: tuple[Any, ...], variables: list[ir.Var]) -> tuple[int, Any] | None:
    """Read `index < bound`, moved around at will: which index, and a bound that no loop changes.

    An index may grow by some steps with what the term bounds.
    """
    ordered = as_less_than(term)
    if ordered is None:
        return None
    low, high = ordered
    for step in range(1, MAX_STEP + 1):  # i < n is 4 i + 3 < 4 (n - 1) + 4
        for axis, index in enumerate(indices):
            if not ir.depends_on(index, variables):
                continue
            bound = _distance(low * step, (high - 1) * step + 1, index)
            if not ir.depends_on(bound, variables):
                return axis, bound
    return None


def _distance(low: Any, high: Any, index: Any) -> Any:
    """Return `high - low + index`, simplified although casts may be in different places."""
    if ir.dtype_of(index) == ir.dtype_of(low):
        return ir.simplify(high - low + index)
    wide: dict[Any, Any] = {}
    total = ir.simplify(_widen(high, wide) - _widen(low, wide) + _widen(index, wide))
    return ir.simplify(ir.substitute(total, {new: _cast(old) for old, new in wide.items()}))


def _widen(expr: Any, wide: dict[Any, Any]) -> Any:
    """Write an integer expression in 64 bits throughout: no index overflows the type it has."""
    if isinstance(expr, tirx.Cast):
        return _widen(expr.value, wide)
    if isinstance(expr, (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod)):
        return type(expr)(_widen(expr.a, wide), _widen(expr.b, wide))
    if isinstance(expr, ir.Var) and ir.dtype_of(expr) != "int64":
        return wide.setdefault(expr, ir.Var(expr.name, "int64"))
    return _cast(expr)


def _cast(expr: Any) -> Any:
    if isinstance(expr, (int, tirx.IntImm)):
        return tirx.IntImm("int64", int(expr))
    return expr if ir.dtype_of(expr) == "int64" else tirx.Cast("int64", expr)


def as_less_than(term: Any) -> tuple[Any, Any] | None:
    """Return the sides of `a < b` that a comparison of integers says, None for other terms."""
    if isinstance(term, tirx.LT):
        return term.a, term.b
    if isinstance(term, tirx.GT):
        return term.b, term.a
    if isinstance(term, tirx.LE):
        return term.a, term.b + 1
    if isinstance(term, tirx.GE):
        return term.b, term.a + 1
    return None


def without_quotient(low: Any, high: Any) -> tuple[Any, Any]:
    """Write `a + b // 8 < 6` as `8 a + b < 48`, which is the same of integers.

    So elements are compared, where a schedule counts the vectors of its threads.
    """
    if not isinstance(high, tirx.IntImm):
        return low, high
    terms = summands(low)
    for place, term in enumerate(terms):
        by = ir.static_int(term.b) if isinstance(term, tirx.FloorDiv) else None
        if by is not None and by > 0:
            rest = [x * by for x in terms[:place] + terms[place + 1 :]]
            return sum(rest, term.a), high * by
    return low, high


def _equal(first: Any, second: Any) -> bool:
    return ir.is_const(ir.simplify(first - ir.cast_like(second, first)), 0)


def _same_bound(term: Any, bound: Any, analyzer: sym.Analyzer) -> bool:
    """Tell whether two predicates agree everywhere: compare signs, then prove both ways."""
    sides, others = as_less_than(term), as_less_than(bound)
    if sides is None or others is None:
        return _agree(bound, term, analyzer)
    first, second = (low - high for low, high in (sides, others))
    is_typed_alike = ir.dtype_of(first) == ir.dtype_of(second)
    return (is_typed_alike and _same_sign(first, second, analyzer)) or _agree(bound, term, analyzer)


def _same_places(term: Any, bound: Any, loops: tuple[ir.For, ...]) -> bool:
    """Tell whether two predicates agree at each place of static loops, one by one.

    TVM divides `bx * 4 + bz % 4 < 6` by two where bz counts the blocks of a cluster, and writes
    `bz // 2 < 1` as `bz < 2`: no rule of its own leads back.
    """
    used = [x for x in loops if ir.uses(term, x.loop_var) or ir.uses(bound, x.loop_var)]
    ranges = [(ir.static_int(x.min), ir.static_int(x.extent)) for x in used]
    if any(low is None or count is None for low, count in ranges):
        return False
    if math.prod(count or 0 for _, count in ranges) > MOST_PLACES:
        return False
    axes = [np.arange(low or 0, (low or 0) + (count or 0)) for low, count in ranges]
    values = dict(zip((x.loop_var for x in used), np.meshgrid(*axes, indexing="ij"), strict=True))
    try:
        first, second = (at_places(x, values) for x in (term, bound))
    except KeyError:  # what is no loop's, or no sum of loops
        return False
    return bool(np.all(first == second))


def _agree(first: Any, second: Any, analyzer: sym.Analyzer) -> bool:
    return _implies(first, second, analyzer) and _implies(second, first, analyzer)


def _implies(first: Any, second: Any, analyzer: sym.Analyzer) -> bool:
    """Prove that one comparison follows from another, forwards or backwards.

    A condition on a whole tile, k < 1 for 16 k + row < 16, is within reach backwards alone.
    """
    with analyzer.constraint_scope(first):
        if analyzer.can_prove(second):
            return True
    sides, others = as_less_than(first), as_less_than(second)
    if sides is None or others is None:
        return False
    with analyzer.constraint_scope(others[0] >= others[1]):
        return bool(analyzer.can_prove(sides[0] >= sides[1]))


def _find_not_negative(term: Any, indices: tuple[Any, ...], analyzer: sym.Analyzer) -> list[int]:
    """Return the indices of which a term says that they are not negative, and nothing else.

    `1 <= i` says so of i - 1, and of 3 * i - 2.
    """
    ordered = as_less_than(term)
    if ordered is None or ir.dtype_of(ordered[0]) != ir.dtype_of(ordered[1]):
        return []
    low, high = ordered
    found = (ir.cast_like(index, high) for index in indices)
    return [axis for axis, x in enumerate(found) if _same_sign(high - 1 - low, x, analyzer)]


def _same_sign(first: Any, second: Any, analyzer: sym.Analyzer) -> bool:
    """Tell whether two integers are negative at the same places.

    Both 3 * i - 2 and 8 * i + j - 8 are so as i - 1 is, for j from 0 to 7.
    """
    first, second = _in_whole_steps(first, analyzer), _in_whole_steps(second, analyzer)
    if not ir.depends_on(first, ir.find_all(second, ir.Var)):
        return _equal(first, second)
    cuts = {1, *(ir.static_int(x.b) or 1 for x in ir.find_all([first, second], tirx.FloorDiv))}
    return any(
        _equal(analyzer.simplify(tirx.floordiv(x, cut)), y)
        for cut in sorted(cuts)
        for x, y in ((first, second), (second, first))
    )


def _in_whole_steps(expr: Any, analyzer: sym.Analyzer) -> Any:
    """Divide by the steps of its terms, rounding down: that changes no sign."""
    expr = analyzer.simplify(expr)
    for step in sorted({divisor(x) for x in terms_of(expr)}, reverse=True):
        if step > 1:
            cut = analyzer.simplify(tirx.floordiv(expr, step))
            if len(ir.find_all(cut, tirx.FloorDiv)) <= len(ir.find_all(expr, tirx.FloorDiv)):
                return _in_whole_steps(cut, analyzer)
    return expr
