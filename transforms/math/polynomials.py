"""Evaluate polynomials by Horner's rule, for approximations of float32 functions.

    0.8 * (x + 0.04 * x * x * x)    ->    x * (0.032 * (x * x) + 0.8)

The constants of a program are around its sums and before each power; here they are joined,
each rounded once, and odd and even powers are of the square. The cubic of an activation takes three
instructions then, and four as it is written. What is no such sum, or has one power alone, is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir

Powers = dict[int, float]
MAX_POWER = 8  # a higher power of what is small may be no number of float32
SMALLEST, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # of float32, with all its digits


def is_number(value: float) -> bool:
    """Tell whether float32 has a number, with all its digits."""
    return value == 0 or SMALLEST <= abs(value) <= LARGEST


def horner(number: float, value: Any) -> Any | None:
    """Build a multiple of a sum of powers of one value.

    - `number`: a factor.
    - `value` (Expr): of float32.
    - returns (Expr or None): None where the value is no sum of several powers of one other, or
      float32 has no number for a joined constant.
    """
    for base in _bases(value):
        powers = powers_of(value, base)
        if powers is None or len(powers) < 2 or max(powers) < 2:
            continue
        joined = {n: number * c for n, c in powers.items()}
        return _build(joined, base) if all(map(is_number, joined.values())) else None
    return None


def _bases(value: Any) -> list[Any]:
    """Return what is multiplied anywhere in a value, constants and products aside, each once."""
    found: list[Any] = []
    for product in ir.find_all(value, tirx.Mul):
        for side in (product.a, product.b):
            known = any(tvm_ffi.structural_equal(side, x) for x in found)
            if not known and not isinstance(side, tirx.FloatImm | tirx.Mul):
                found.append(side)
    return found


def powers_of(value: Any, base: Any) -> Powers | None:
    """Return the constant of each power of a base that a value is the sum of."""
    if tvm_ffi.structural_equal(value, base):
        return {1: 1.0}
    if isinstance(value, tirx.FloatImm):
        return {0: float(value.value)}
    if not isinstance(value, tirx.Add | tirx.Sub | tirx.Mul):
        return None
    left, right = powers_of(value.a, base), powers_of(value.b, base)
    if left is None or right is None:
        return None
    if isinstance(value, tirx.Mul):
        if len(left) > 1 and len(right) > 1:  # a product of sums has more powers than they have
            return None
        product = {n + m: a * b for n, a in left.items() for m, b in right.items()}
        return product if max(product) <= MAX_POWER else None
    sign = 1 if isinstance(value, tirx.Add) else -1
    return {n: left.get(n, 0.0) + sign * right.get(n, 0.0) for n in {**left, **right}}


def _build(powers: Powers, base: Any) -> Any:
    first = min(powers)
    step = 2 if all((n - first) % 2 == 0 for n in powers) else 1
    coefficients = [powers.get(n, 0.0) for n in range(first, max(powers) + 1, step)]
    square = base * base if step == 2 else base

    def sum_of(x: Any) -> Any:
        found: Any = tirx.const(coefficients[-1], "float32")
        for coefficient in coefficients[-2::-1]:
            found = found * x
            found = found + tirx.const(coefficient, "float32") if coefficient else found
        return found

    value = sum_of(square) if len(coefficients) == 2 else let("power", square, sum_of)
    for _ in range(first):
        value = base * value
    return value


def let(name: str, value: Any, body: Callable[[Any], Any]) -> Any:
    """Build an expression that uses a value several times and computes it once."""
    var = ir.Var(name, "float32")
    return tirx.Let(var, value, body(var))
