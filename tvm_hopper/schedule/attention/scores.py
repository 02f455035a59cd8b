"""Scores as float32 arithmetic: constants, the scale that can wait, masks.

  Cast("float16", S) * float16(0.125) + Select(j <= i, 0, -inf)
->
  0.125 * Select(j <= i, S, -inf)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_hopper import ir

from .conditions import as_condition, call_name, choice, is_float, negate, same

FLOAT32 = "float32"
MINUS_INFINITY = float("-inf")
# A key whose score is replaced by this or less has the weight exp(-large) = 0 beside any other:
# what programs write for "masked" in every float type (float16's lowest value, -1e9, ...).
MASKED_BELOW = -6e4
_FOLDED: dict[str, Callable[[float], float]] = {
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "rsqrt": lambda x: 1 / math.sqrt(x) if x > 0 else math.nan,
    "exp": math.exp,
    "log": lambda x: math.log(x) if x > 0 else math.nan,
}
_BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
_COMPARED = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def without_casts(expr: Any) -> Any:
    """Return an expression without conversions between float types around it."""
    while isinstance(expr, tirx.Cast) and is_float(expr) and is_float(expr.value):
        expr = expr.value
    return expr


def number(expr: Any) -> float | None:
    """Return the value of a constant, None for anything else."""
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return float(expr.value) if isinstance(expr, (tirx.FloatImm, tirx.IntImm)) else None


def constant(value: Any) -> Any:
    """Return a float as a float32 constant; leave expressions alone."""
    return tirx.FloatImm(FLOAT32, value) if isinstance(value, (int, float)) else value


def to_float32(expr: Any) -> Any:
    """Compute float expressions in float32, without the roundings of narrower types in between."""
    if not is_float(expr):
        is_condition = ir.dtype_of(expr) == "bool"
        return _with_float32_inside(as_condition(expr) if is_condition else expr)
    if isinstance(expr, tirx.FloatImm):
        return constant(float(expr.value))
    if isinstance(expr, tirx.Cast):
        inner = to_float32(expr.value)
        return inner if is_float(inner) else _cast_constant(inner)
    if isinstance(expr, _BINARY):
        return fold(type(expr)(to_float32(expr.a), to_float32(expr.b)))
    if (parts := choice(expr)) is not None:
        return tirx.Select(*(to_float32(x) for x in parts))
    if isinstance(expr, ir.Call):
        args = [to_float32(x) for x in expr.args]
        compute, value = _FOLDED.get(call_name(expr)), number(args[0]) if len(args) == 1 else None
        if compute is not None and value is not None:
            return constant(compute(value))
        return ir.Call(expr.op, args, ret_ty=FLOAT32)
    return expr if ir.dtype_of(expr) == FLOAT32 else tirx.Cast(FLOAT32, expr)


def _with_float32_inside(expr: Any) -> Any:
    if isinstance(expr, _COMPARED):
        return type(expr)(to_float32(expr.a), to_float32(expr.b))
    if isinstance(expr, (tirx.And, tirx.Or)):
        return type(expr)(to_float32(expr.a), to_float32(expr.b))
    if isinstance(expr, tirx.Not):
        return tirx.Not(to_float32(expr.a))
    if isinstance(expr, tirx.Cast) and is_float(expr.value):
        return tirx.Cast(ir.dtype_of(expr), to_float32(expr.value))
    return expr


def _cast_constant(expr: Any) -> Any:
    value = number(expr)
    return tirx.Cast(FLOAT32, expr) if value is None else constant(value)


def fold(expr: Any) -> Any:
    """Compute an operation of constants, and leave out additions of 0 and products with 1."""
    a, b = number(expr.a), number(expr.b)
    if isinstance(expr, tirx.Mul) and 1.0 in (a, b):
        return expr.b if a == 1.0 else expr.a
    if isinstance(expr, tirx.Div) and b == 1.0:
        return expr.a
    if isinstance(expr, tirx.Add) and 0.0 in (a, b):
        return expr.b if a == 0.0 else expr.a
    if a is None or b is None:
        return expr
    if isinstance(expr, tirx.Mul):
        return constant(a * b)
    if isinstance(expr, tirx.Div) and b != 0:
        return constant(a / b)
    return expr


def masks_as_choices(expr: Any) -> Any:
    """Write masks that are added as choices between the score and minus infinity.

        s + Select(c, 0, -inf)      ->      Select(c, s, -inf)

    A score that is no number because of what a masked key holds is left out so, too.
    """
    if isinstance(expr, (tirx.Mul, tirx.Div)):
        return type(expr)(masks_as_choices(expr.a), masks_as_choices(expr.b))
    if isinstance(expr, tirx.Add):
        sides = masks_as_choices(expr.a), masks_as_choices(expr.b)
        for mask, score in (sides, sides[::-1]):
            if isinstance(mask, tirx.Select) and number(mask.false_value) == MINUS_INFINITY:
                inside = fold(tirx.Add(score, mask.true_value))
                return tirx.Select(mask.condition, inside, mask.false_value)
        return tirx.Add(*sides)
    parts = choice(expr)
    if parts is None:
        return expr
    condition, yes, no = parts
    yes, no = masks_as_choices(yes), masks_as_choices(no)
    first, second = number(yes), number(no)
    if first is not None and (second is None or first < second):  # what masks comes last
        condition, yes, no = negate(condition), no, yes
    if isinstance(yes, tirx.Select) and same(yes.condition, condition):
        yes = yes.true_value
    return tirx.Select(condition, yes, no)


def take_scale(expr: Any) -> tuple[Any, float]:
    """Split scores into an expression and a positive constant that it is multiplied by.

    Masks by minus infinity stay masks: infinity is itself, however scaled.
    """
    if isinstance(expr, tirx.Mul):
        for factor, rest in ((expr.a, expr.b), (expr.b, expr.a)):
            value = number(factor)
            if value is not None and 0 < value < math.inf:
                inner, scale = take_scale(rest)
                return inner, scale * value
    if isinstance(expr, tirx.Div):
        value = number(expr.b)
        if value is not None and 0 < value < math.inf:
            inner, scale = take_scale(expr.a)
            return inner, scale / value
    if isinstance(expr, tirx.Select) and number(expr.false_value) == MINUS_INFINITY:
        inner, scale = take_scale(expr.true_value)
        return tirx.Select(expr.condition, inner, expr.false_value), scale
    return expr, 1.0


def mask_conditions(expr: Any, scale: float) -> tuple[list[tuple[Any, float]], Any]:
    """Return the conditions outside of which scores are masked, and the scores inside.

    Each condition comes with the score outside of it.
    """
    if isinstance(expr, tirx.Select):
        fill = number(expr.false_value)
        if fill is not None and fill * scale <= MASKED_BELOW:
            found, rest = mask_conditions(expr.true_value, scale)
            # keys that this condition hides count by its score, whatever hides them inside of it
            inner = [(term, max(x, fill)) for term, x in found]
            return [*((term, fill) for term in ir.conjuncts(expr.condition)), *inner], rest
    if isinstance(expr, tirx.Add):
        for mask, score in ((expr.a, expr.b), (expr.b, expr.a)):
            found, added = mask_conditions(mask, scale)
            if found:
                more, rest = mask_conditions(score, scale)
                return found + more, fold(tirx.Add(added, rest))
    return [], expr


def may_be_large(expr: Any) -> bool:
    """Tell whether scores may be as far below 0 as what stands for "masked", without infinity.

    So do programs write masks, in a constant or in a tensor that is added.
    """
    constants = [float(x.value) for x in ir.find_all(expr, tirx.FloatImm)]
    if any(MINUS_INFINITY < x <= MASKED_BELOW for x in constants):
        return True
    return ir.has_any(expr, ir.TensorLoad, is_float)
