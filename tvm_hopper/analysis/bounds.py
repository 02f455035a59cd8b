"""Compare predicates with "these indices lie inside this tensor"."""

from __future__ import annotations

from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir


def is_exact_bounds(
    condition: Any, indices: tuple[Any, ...], shape: tuple[Any, ...], loops: tuple[ir.For, ...]
) -> bool:
    """Tell whether `condition` holds just where each index is below its extent.

    Needed where hardware fills by the tensor's own bounds: any other predicate would be dropped.
    `loops` give the ranges of their variables.
    """
    analyzer = sym.Analyzer()
    for loop in loops:
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    bounds = [
        index < ir.cast_like(extent, index) for index, extent in zip(indices, shape, strict=True)
    ]
    bounds = [bound for bound in bounds if isinstance(bound, tirx.LT)]  # 0 < 1 is a constant
    terms = [
        term for term in ir.conjuncts(condition) if not _is_lower_bound(term, indices, analyzer)
    ]
    return all(any(_same_bound(term, bound, analyzer) for bound in bounds) for term in terms)


def _same_bound(term: Any, bound: Any, analyzer: sym.Analyzer) -> bool:
    """Tell whether two predicates agree everywhere: compare the distance, then prove both ways."""
    if isinstance(term, tirx.LT) and ir.dtype_of(term.a) == ir.dtype_of(bound.a):
        gap = analyzer.simplify((term.b - term.a) - (bound.b - bound.a))
        if ir.is_const(gap, 0):
            return True
    with analyzer.constraint_scope(bound):
        if not analyzer.can_prove(term):
            return False
    with analyzer.constraint_scope(term):
        return bool(analyzer.can_prove(bound))


def _is_lower_bound(term: Any, indices: tuple[Any, ...], analyzer: sym.Analyzer) -> bool:
    """Tell whether a term only says that an index is not negative, as every index here is."""
    if isinstance(term, (tirx.LE, tirx.GE)):
        low, high = (term.a, term.b) if isinstance(term, tirx.LE) else (term.b, term.a)
        return ir.is_const(low, 0) and any(
            ir.is_const(analyzer.simplify(high - index), 0) for index in indices
        )
    return False
