"""Decide whether neighbouring elements can be stored as one vector."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir

from .divisors import divides


def shared_condition(condition: Any, e: ir.Var, length: int) -> Any:
    """Return a condition without `e` that holds for all of `e` = 0 ... `length` - 1, or for none.

    None if they may differ. A bound `x + e < n` is the same for all when `length` divides x and n.
    """
    terms: list[Any] = []
    for term in ir.conjuncts(condition):
        if not ir.depends_on(term, [e]):
            terms.append(term)
            continue
        first, second = _at(term, e)
        if not isinstance(first, tirx.LT):
            return None
        steps = ir.is_const(ir.simplify(second.a - first.a), 1)
        if not steps or ir.depends_on(term.b, [e]):
            return None
        if not (divides(length, first.a) and divides(length, first.b)):
            return None
        terms.append(first)
    return ir.conjunction(terms)


def is_aligned_run(buffer: ir.Var, indices: list[Any], e: ir.Var, length: int) -> bool:
    """Tell whether `e` = 0 ... `length` - 1 are neighbors in memory, aligned to `length`.

    Aligned as far as the tensor's start is, which is checked at each call.
    """
    *outer, last = indices
    first, second = _at(last, e)
    if buffer.ty.strides:
        *rows, step = buffer.ty.strides
    else:
        rows, step = ([buffer.shape[-1]] if outer else []), 1
    return (
        ir.is_const(step, 1)
        and starts_aligned(buffer, length)
        and not ir.depends_on(outer, [e])
        and ir.is_const(ir.simplify(second - first), 1)
        and divides(length, first)
        and all(divides(length, row) for row in rows)
    )


def starts_aligned(buffer: ir.Var, length: int) -> bool:
    """Tell whether the first element lies a multiple of `length` after the tensor's start.

    TVM checks a declared `offset_factor` at each call.
    """
    return divides(length, buffer.ty.elem_offset) or int(buffer.ty.offset_factor) % length == 0


def _at(expr: Any, e: ir.Var) -> tuple[Any, Any]:
    return ir.substitute(expr, {e: 0}), ir.substitute(expr, {e: 1})


def is_run_in_bounds(
    buffer: ir.Var, indices: list[Any], condition: Any, lane: ir.Var, length: int
) -> bool:
    """Tell whether `length` neighbors are aligned together, and all in bounds or all outside."""
    shared = shared_condition(condition, lane, length)
    return shared is not None and is_aligned_run(buffer, indices, lane, length)
