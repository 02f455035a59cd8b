"""Conditions in one form, however programs write truth values.

Cast("int8", j <= i) != 0 and bitwise_and(mask[j], True)      ->      j <= i and mask[j]
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir

_OPPOSITES = {
    tirx.LT: tirx.GE,
    tirx.GE: tirx.LT,
    tirx.GT: tirx.LE,
    tirx.LE: tirx.GT,
    tirx.EQ: tirx.NE,
    tirx.NE: tirx.EQ,
}
_AND, _OR = (tirx.And, tirx.BitwiseAnd), (tirx.Or, tirx.BitwiseOr)
_TURNED = {tirx.LT: tirx.GT, tirx.GT: tirx.LT, tirx.LE: tirx.GE, tirx.GE: tirx.LE}


def same(first: Any, second: Any) -> bool:
    """Tell whether two expressions are equal as they are written."""
    return bool(tvm_ffi.structural_equal(first, second))


def is_float(expr: Any) -> bool:
    """Tell an expression of a float type."""
    return "float" in ir.dtype_of(expr)


def call_name(expr: Any) -> str:
    """Return the name of a called function, without its prefix; empty for anything else."""
    return str(getattr(expr.op, "name", "")).split(".")[-1] if isinstance(expr, ir.Call) else ""


def choice(expr: Any) -> tuple[Any, Any, Any] | None:
    """Return the parts of a `Select` or `if_then_else`, None for anything else."""
    if isinstance(expr, tirx.Select):
        return expr.condition, expr.true_value, expr.false_value
    if ir.is_choice(expr):
        condition, yes, no = expr.args
        return condition, yes, no
    return None


def as_condition(expr: Any) -> Any:
    """Write a condition with `and`, `or`, `not`, comparisons and loads of bools alone."""
    if isinstance(expr, tirx.Cast) and not is_float(expr.value):
        truth = _truth_of(expr.value)
        return expr if truth is None else truth
    parts = _parts_of_bool(expr)
    if parts is None:
        return _compared_distance(_compared_truth(expr))
    kind, sides = parts
    sides = [as_condition(x) for x in sides]
    if kind is tirx.Not:
        return negate(sides[0])
    neutral = int(kind is tirx.And)
    kept = [x for x in sides if not ir.is_const(x, neutral)]
    return kind(*kept) if len(kept) == 2 else (kept or sides)[0]


def _parts_of_bool(expr: Any) -> tuple[type, list[Any]] | None:
    """Return whether a condition is an `and`, an `or` or a `not`, and of what."""
    if ir.dtype_of(expr) != "bool":
        return None
    for kind, nodes in ((tirx.And, _AND), (tirx.Or, _OR)):
        if isinstance(expr, nodes):
            return kind, [expr.a, expr.b]
    if isinstance(expr, tirx.Not):
        return tirx.Not, [expr.a]
    if call_name(expr) == "bitwise_not":
        return tirx.Not, list(expr.args)
    if (parts := choice(expr)) is not None:
        condition, yes, no = parts
        if ir.is_const(no, 0):
            return tirx.And, [condition, yes]
        return (tirx.Or, [condition, no]) if ir.is_const(yes, 1) else None
    return None


def _compared_distance(expr: Any) -> Any:
    """Write `abs(x) <= y` as `x <= y and -x <= y`."""
    if type(expr) not in _TURNED or is_float(expr.a):
        return expr
    if type(expr) in (tirx.GE, tirx.GT):
        expr = _TURNED[type(expr)](expr.b, expr.a)
    parts = choice(expr.a) if type(expr) in (tirx.LE, tirx.LT) else None
    if parts is None:
        return expr
    condition, yes, no = parts
    is_distance = any(same(condition, x) for x in (tirx.LE(yes * 0, yes), tirx.GE(yes, yes * 0)))
    if not is_distance or not ir.is_const(ir.simplify(yes + no), 0):
        return expr
    kind = type(expr)
    return tirx.And(kind(yes, expr.b), kind(no, expr.b))


def _truth_of(expr: Any) -> Any:
    """Return the condition that an integer is the truth value of, None for another integer."""
    if ir.dtype_of(expr) == "bool":
        return as_condition(expr)
    if isinstance(expr, tirx.Cast) and not is_float(expr.value):
        return _truth_of(expr.value)
    return None


def _compared_truth(expr: Any) -> Any:
    """Read the comparison of a truth value with 0."""
    if type(expr) not in _OPPOSITES:
        return expr
    kind, a, b = type(expr), expr.a, expr.b
    if ir.is_const(a, 0):
        kind, a, b = _TURNED.get(kind, kind), b, a
    truth = _truth_of(a) if ir.is_const(b, 0) and not is_float(a) else None
    if truth is None:
        return expr
    if kind in (tirx.NE, tirx.GT):
        return truth
    return negate(truth) if kind in (tirx.EQ, tirx.LE) else expr


def negate(condition: Any) -> Any:
    """Return the opposite of a condition, as a comparison where it is one of integers."""
    if isinstance(condition, tirx.Not):
        return condition.a
    if isinstance(condition, tirx.Or):
        return tirx.And(negate(condition.a), negate(condition.b))
    if isinstance(condition, tirx.And):
        return tirx.Or(negate(condition.a), negate(condition.b))
    kind = type(condition)
    if kind in _OPPOSITES and (kind in (tirx.EQ, tirx.NE) or not is_float(condition.a)):
        return _OPPOSITES[kind](condition.a, condition.b)
    return tirx.Not(condition)
