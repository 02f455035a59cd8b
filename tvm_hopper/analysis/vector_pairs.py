"""Decide whether two neighbouring elements of a thread can be stored as one vector."""

from __future__ import annotations

from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir


def pair_condition(condition: Any, e: ir.Var) -> Any:
    """Return a condition without `e` that is true for both `e` = 0 and 1, or for neither.

    None if the two may differ. A bound `x + e < n` is the same for both when x and n are even.
    """
    terms = []
    for term in ir.conjuncts(condition):
        if not ir.depends_on(term, [e]):
            terms.append(term)
            continue
        first, second = _at(term, e)
        if not isinstance(first, tirx.LT):
            return None
        steps = ir.is_const(ir.simplify(second.a - first.a), 1)
        if (
            not steps
            or ir.depends_on(term.b, [e])
            or not _is_even(first.a)
            or not _is_even(first.b)
        ):
            return None
        terms.append(first)
    result: Any = tirx.const(True, "bool")
    for term in terms:
        result = term if ir.is_const(result, 1) else tirx.And(result, term)
    return result


def is_aligned_pair(store: ir.BufferStore, e: ir.Var) -> bool:
    """Tell whether `e` = 0 and 1 are neighbours in memory, the first at an even element."""
    *outer, last = store.indices
    first, second = _at(last, e)
    return (
        not store.buffer.ty.strides
        and ir.is_const(store.buffer.ty.elem_offset, 0)
        and not ir.depends_on(outer, [e])
        and ir.is_const(ir.simplify(second - first), 1)
        and _is_even(first)
        and _is_even(store.buffer.shape[-1])
    )


def _at(expr: Any, e: ir.Var) -> tuple[Any, Any]:
    return ir.substitute(expr, {e: 0}), ir.substitute(expr, {e: 1})


def _is_even(expr: Any) -> bool:
    bound = sym.Analyzer().modular_set(ir.simplify(expr))
    return int(bound.coeff) % 2 == 0 and int(bound.base) % 2 == 0
