"""Find known divisors of an integer expression."""

from __future__ import annotations

from math import gcd
from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir


def divisor(expr: Any) -> int:
    """Return a number that divides an integer expression whatever its variables are.

    0 for an expression that is 0, which every number divides.
    """
    if isinstance(expr, (tirx.Max, tirx.Min)):
        return gcd(divisor(expr.a), divisor(expr.b))
    if isinstance(expr, tirx.Select):
        return gcd(divisor(expr.true_value), divisor(expr.false_value))
    known = ir.static_int(expr)
    if known is not None:
        return known
    modular = sym.Analyzer().modular_set(ir.simplify(expr))
    return gcd(int(modular.coeff), int(modular.base))


def divides(length: int, expr: Any) -> bool:
    """Tell whether a length divides an integer expression for sure."""
    return divisor(expr) % length == 0


def terms_of(expr: Any) -> list[Any]:
    """Return the terms of a sum of integers; those subtracted times -1."""
    if isinstance(expr, tirx.Sub):
        return [*terms_of(expr.a), *(x * -1 for x in terms_of(expr.b))]
    return [*terms_of(expr.a), *terms_of(expr.b)] if isinstance(expr, tirx.Add) else [expr]
