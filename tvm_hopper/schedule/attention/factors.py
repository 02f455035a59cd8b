"""Split the terms of a sum into factors, and weights into exponents.

  Select(c, Cast("float16", exp(s - m) / l), 0) * v
->
  over: exp(s - m), v        under: l        where: c
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import HALF_DTYPES

from .conditions import call_name, choice, is_float, negate
from .scores import constant, number, without_casts

EXPONENTIALS = ("exp", "exp2")


@dataclass
class Factors:
    """A product of float factors and of inverses, and the conditions outside of which it is 0."""

    over: list[Any] = field(default_factory=list)
    under: list[Any] = field(default_factory=list)
    where: list[Any] = field(default_factory=list)

    def join(self, other: Factors) -> Factors:
        """Multiply two products."""
        return Factors(self.over + other.over, self.under + other.under, self.where + other.where)

    def split_numbers(self) -> tuple[float, Factors]:
        """Return the product of the constant factors, and the other ones."""
        value = 1.0
        for x in self.over:
            value *= _number_or_one(x)
        for x in self.under:
            value /= _number_or_one(x)
        over, under = ([x for x in part if number(x) is None] for part in (self.over, self.under))
        return value, Factors(over, under, self.where)


def _number_or_one(expr: Any) -> float:
    value = number(expr)
    return 1.0 if value is None else value


def factors(expr: Any) -> Factors:
    """Split an expression into its factors."""
    expr = without_casts(expr)
    if isinstance(expr, tirx.Mul):
        return factors(expr.a).join(factors(expr.b))
    if isinstance(expr, tirx.Div):
        below = factors(expr.b)
        inverse = Factors([], [expr.b]) if below.where else Factors(below.under, below.over)
        return factors(expr.a).join(inverse)
    parts = choice(expr)
    if parts is not None and is_float(expr):
        condition, yes, no = parts
        if ir.is_zero(no):
            return factors(yes).join(Factors(where=[condition]))
        if ir.is_zero(yes):
            return factors(no).join(Factors(where=[negate(condition)]))
    return Factors([expr])


def rounded_to(expr: Any, inner: Any) -> str:
    """Return the 16-bit type that an expression rounds one of its parts to, empty if none."""
    found: list[str] = []

    def note(node: Any) -> None:
        if ir.dtype_of(node) in HALF_DTYPES and ir.uses_node(node, inner):
            found.append(ir.dtype_of(node))

    kinds = (tirx.Cast, tirx.Mul, tirx.Div, tirx.Select, ir.Call)
    ir.visit(expr, [(kind, note) for kind in kinds])
    return found[0] if found else ""


def split_exponent(expr: Any, key: Any) -> tuple[Any, Any]:
    """Split an exponent into scores and what is subtracted from all of a row, None for nothing."""
    if isinstance(expr, tirx.Sub) and not ir.depends_on(expr.b, [key]):
        first = expr.a
        if isinstance(first, tirx.Sub) and isinstance(without_casts(first.b), ir.TensorLoad):
            inner, shift = split_exponent(first, key)  # a maximum was subtracted before
            return (first, expr.b) if shift is None else (inner, shift + expr.b)
        return first, expr.b
    if isinstance(expr, (tirx.Mul, tirx.Div)) and number(expr.b) is not None:
        inner, shift = split_exponent(expr.a, key)
        by = constant(float(number(expr.b)))  # type: ignore[arg-type]
        kind = type(expr)
        return (expr, None) if shift is None else (kind(inner, by), kind(shift, by))
    return expr, None


def find_exponential(found: Factors, key: Any) -> Any:
    """Return the one factor that is an exponential of scores, None if there is none."""
    matching = [x for x in found.over if call_name(x) in EXPONENTIALS and ir.depends_on(x, [key])]
    return matching[0] if len(matching) == 1 else None
