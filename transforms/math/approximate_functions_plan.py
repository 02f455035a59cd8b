"""Find float32 functions whose results are rounded to 16 bits, and their shorter formulas.

    1 + tanh(u)        2 / (1 + 2^(-2u log2 e))
    1 + erf(u)         E(|u|) or 2 - E(|u|),  E(a) = t P(t) 2^(-a^2 log2 e),  t = 1 / (1 + p a)
    1 / (1 + exp(y))   the same, by the chip's 1/x
    sigmoid(x)         1 / (1 + exp(-x)), the same
    tanh(u)            1 - 2 / (1 + 2^(2u log2 e)), near zero an odd polynomial

The sums are what activations are made of.  Written as they are they cancel where the result is
small: 1 + tanhf(u) is a multiple of 2^-24, and zero below u = -9.  The forms on the right do not.
Errors are parts of the exact value (`tests/transforms/math/test_approximate_functions_plan.py`);
rounding to float16 makes one of 2^-12, to bfloat16 of 2^-9. Where that is all that is requested,
there is

    tanh(u)            tanh.approx.f32, 2^-11

in all of these sums, by the option alone.  Kernels whose time is that of their bytes have two more,

    x / (1 + exp(y))   x times the reciprocal
    exp(x)             2^(x log2 e)

since CUDA's division and exponential take more instructions than such a kernel has time for. The
last is in sigmoid, too, where a value of 16 bits is computed of one that is rounded: in a gate.

Values that stay float32 keep all functions in such kernels, but what divides by 1 + exp(y) becomes
a product with the chip's 1/x: as exact as CUDA's exponential is, in a third of the instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches import approximations
from tvm_hopper.codegen_patches.approximations import (
    power_of_two,
    reciprocal,
    whole_range_reciprocal,
)

from .activations import ACTIVATIONS, Activation, build_activation, find_activation
from .polynomials import horner, is_number, let

HALVES = ("float16", "bfloat16")
LOG2_E = 1.4426950408889634
# t P(t) = erfc(a) exp(a^2), t = 1 / (1 + p a): largest relative error 2^-20 for all a >= 0.
# Lawson's algorithm, weights of the relative error, float64.
ERFC_P = 0.375
ERFC = (
    0.2113732248544693,
    0.21523723006248474,
    0.16904155910015106,
    0.2767525017261505,
    -0.1206471174955368,
    0.3814738392829895,
    -0.13323062658309937,
)
# tanh(u) / u in powers of u^2 up to NEAR: largest relative error 2^-23, by the same method.
NEAR = 0.4
TANH = (0.9999998807907104, -0.33331361413002014, 0.13270974159240723, -0.047553591430187225)


@dataclass(frozen=True)
class ShortFunction:
    """A pattern, its replacement, and the error of the replacement.

    - `form`: as a reader would write it.
    - `match`: returns the argument where an expression has the form, else None.
    - `build`: makes the replacement of an argument.
    - `error`: the largest error, in parts of the exact value, and 2^-125 next to that.
    """

    form: str
    match: Callable[[Any], Any | None]
    build: Callable[[Any], Any]
    error: float


# -- how a form is found


def _is(value: Any, number: float) -> bool:
    return isinstance(value, tirx.FloatImm) and float(value.value) == number


def _argument(call: Any, name: str) -> Any | None:
    named = isinstance(call, ir.Call) and str(getattr(call.op, "name", "")) == f"tirx.{name}"
    return call.args[0] if named else None


def _one_plus(name: str) -> Callable[[Any], Any | None]:
    def match(node: Any) -> Any | None:
        if isinstance(node, tirx.Sub) and _is(node.a, 1):
            found = _argument(node.b, name)
            return None if found is None else times(-1, found)  # both functions are odd
        if not isinstance(node, tirx.Add):
            return None
        sides = [(node.a, node.b), (node.b, node.a)]
        return next((_argument(b, name) for a, b in sides if _is(a, 1)), None)

    return match


def _one_over(node: Any) -> Any | None:
    """Match 1 / (1 + exp(y)), and return the divisor, which is not below one."""
    if not isinstance(node, tirx.Div) or not isinstance(node.b, tirx.Add):
        return None
    sides = [(node.b.a, node.b.b), (node.b.b, node.b.a)]
    found = any(_is(a, 1) and _argument(b, "exp") is not None for a, b in sides)
    return node.b if found and _is(node.a, 1) else None


def _over_one_plus(node: Any) -> Any | None:
    """Match x / (1 + exp(y)), and return x times one over it."""
    if not isinstance(node, tirx.Div):
        return None
    inverse = tirx.Div(_f32(1), node.b)
    return None if _one_over(inverse) is None else node.a * inverse


# -- what stands for it


def _f32(number: float) -> Any:
    return tirx.const(number, "float32")


def split_constant(value: Any) -> tuple[float, Any]:
    """Return the constant in a product and the rest of it."""
    if not isinstance(value, tirx.Mul):
        return 1.0, value
    for a, b in ((value.a, value.b), (value.b, value.a)):
        if isinstance(a, tirx.FloatImm):
            constant, rest = split_constant(b)
            return constant * float(a.value), rest
    return 1.0, value


def times(number: float, value: Any) -> Any:
    """Build a product with a constant, which takes in the one that is there, or those of a sum."""
    if isinstance(value, tirx.Sub) and _is(value.a, 0):
        return times(-number, value.b)
    constant, rest = split_constant(value)
    constant *= number
    if not is_number(constant):
        return _f32(number) * value
    if (powers := horner(constant, rest)) is not None:
        return powers
    return rest if constant == 1 else _f32(constant) * rest


def _horner(coefficients: tuple[float, ...], x: Any) -> Any:
    value: Any = _f32(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + _f32(coefficient)
    return value


def _one_plus_tanh(u: Any) -> Any:
    return _f32(2) * reciprocal(_f32(1) + power_of_two(times(-2 * LOG2_E, u)))


def _one_plus_erf(x: Any) -> Any:
    def tail(u: Any, t: Any) -> Any:
        return _horner(ERFC, t) * t * power_of_two(_f32(-LOG2_E) * (u * u))

    def either(u: Any) -> Any:
        return lambda e: tirx.Select(u < _f32(0), e, _f32(2) - e)

    def of(u: Any) -> Any:
        divisor = _f32(ERFC_P) * tirx.abs(u) + _f32(1)
        return let("e", let("t", reciprocal(divisor), lambda t: tail(u, t)), either(u))

    return let("u", x, of)


def _sigmoid(x: Any) -> Any:
    return reciprocal(_f32(1) + tirx.exp(times(-1, x)))


def _wide_sigmoid(x: Any) -> Any:
    return whole_range_reciprocal(_f32(1) + tirx.exp(times(-1, x)))


def _short_sigmoid(x: Any) -> Any:
    return reciprocal(_f32(1) + power_of_two(times(-LOG2_E, x)))


def _exp(x: Any) -> Any:
    return power_of_two(times(LOG2_E, x))


def _tanh(x: Any) -> Any:
    def of(u: Any) -> Any:
        far = _f32(1) - _f32(2) * reciprocal(_f32(1) + power_of_two(_f32(2 * LOG2_E) * u))
        near = let("s", u * u, lambda s: _horner(TANH, s)) * u
        return tirx.Select(tirx.abs(u) < _f32(NEAR), near, far)

    return let("u", x, of)


_TANH_BY_CHIP = ShortFunction(
    "tanh(u), by the chip's", lambda x: _argument(x, "tanh"), approximations.tanh, 2.0**-11
)
_SHORT = (
    ShortFunction("1 + tanh(u)", _one_plus("tanh"), _one_plus_tanh, 2.0**-17),
    ShortFunction("1 + erf(u)", _one_plus("erf"), _one_plus_erf, 2.0**-16),
    ShortFunction("1 / (1 + exp(y))", _one_over, reciprocal, 2.0**-20),
    ShortFunction("sigmoid(x)", lambda x: _argument(x, "sigmoid"), _sigmoid, 2.0**-20),
    ShortFunction("tanh(u)", lambda x: _argument(x, "tanh"), _tanh, 2.0**-19),
)
SHORT_FUNCTIONS = {"short": _SHORT, "approximate": (_TANH_BY_CHIP, *_SHORT[1:-1])}
"""By the option's value: the forms, those that contain another one first."""
FIRST_OF_MEMORY_BOUND = (  # its exponential is one of those that are replaced after it
    ShortFunction("sigmoid(x)", lambda x: _argument(x, "sigmoid"), _short_sigmoid, 2.0**-16),
)
OF_MEMORY_BOUND = (
    ShortFunction("x / (1 + exp(y))", _over_one_plus, lambda product: product, 2.0**-19),
    ShortFunction("exp(x)", lambda x: _argument(x, "exp"), _exp, 2.0**-16),
)
"""The forms that are replaced after those, in kernels that are bound by memory."""
OF_PRODUCTS = (ShortFunction("exp2(x)", lambda x: _argument(x, "exp2"), power_of_two, 2.0**-22),)
"""The forms that are replaced in values which stay float32, in kernels of products."""
OF_FLOAT32 = (
    ShortFunction("sigmoid(x)", lambda x: _argument(x, "sigmoid"), _wide_sigmoid, 2.0**-21),
    ShortFunction("1 / (1 + exp(y))", _one_over, whole_range_reciprocal, 2.0**-22),
    ShortFunction("x / (1 + exp(y))", _over_one_plus, lambda product: product, 2.0**-22),
)
"""The forms that are replaced in values which stay float32, in kernels that are bound by memory."""


# -- a value that is stored


@dataclass(frozen=True)
class ShortValue:
    """A value's replacement, and the patterns replaced in it."""

    value: Any
    rows: tuple[ShortFunction | Activation, ...]


def shorten(
    value: Any,
    rows: tuple[ShortFunction, ...],
    rounded_later: bool = False,
    whole: bool = False,
) -> ShortValue | None:
    """Replace every form in a value that is rounded to 16 bits; None if there is none.

    - `value` (Expr): what a statement stores.
    - `rows`: the forms.
    - `rounded_later`: whether a value of float32, too, becomes one of 16 bits, or part of such
      values.
    - `whole`: whether activations are replaced as a whole where `rows` has what they are made of.
    """
    is_half = ir.dtype_of(value) in HALVES
    is_rounded = isinstance(value, tirx.Cast) and is_half
    if not is_rounded and not (rounded_later and ir.dtype_of(value) == "float32"):
        return _shorten_rounded(value, rows, whole)
    inner = value.value if is_rounded else value
    if ir.dtype_of(inner) != "float32":
        return None
    found: list[ShortFunction | Activation] = []
    activations = ACTIVATIONS[ir.dtype_of(value)] if whole and is_rounded else ()

    def visit(node: Any, mutator: Any) -> Any:
        if ir.dtype_of(node) != "float32":
            return mutator.default_mutate(node)
        for row in rows:
            argument = row.match(node)
            if argument is not None:
                found.append(row)
                return row.build(tvm_ffi.structural_mutate(argument, callbacks))
        return mutator.default_mutate(node)

    def product(node: Any, mutator: Any) -> Any:
        if ir.dtype_of(node) == "float32" and (known := find_activation(node, activations)):
            found.append(known.activation)
            x, *rest = (tvm_ffi.structural_mutate(y, callbacks) for y in (known.x, *known.rest))
            return build_activation(known, x, rest)
        new = mutator.default_mutate(node)
        if new.same_as(node):
            return node
        (a, x), (b, y) = split_constant(new.a), split_constant(new.b)
        # 0.5 x * 2 r: what doubles and halves is left out, which rounds nothing
        return x * y if a * b == 1 and log2(abs(a)).is_integer() else new

    kinds = (tirx.Add, tirx.Sub, tirx.Div, ir.Call)
    callbacks = [*((kind, visit) for kind in kinds), (tirx.Mul, product)]
    new = tvm_ffi.structural_mutate(value, callbacks)
    return ShortValue(new, tuple(found)) if found else None


def _shorten_rounded(value: Any, rows: tuple[ShortFunction, ...], whole: bool) -> ShortValue | None:
    """Replace the forms in those parts of a value that are rounded to 16 bits."""
    found: list[ShortFunction | Activation] = []
    rows = (*FIRST_OF_MEMORY_BOUND, *rows)

    def rounded(node: Any, mutator: Any) -> Any:
        is_half = ir.dtype_of(node) in HALVES
        short = shorten(node, rows, whole=whole) if is_half else None
        if short is None:
            return mutator.default_mutate(node)
        found.extend(short.rows)
        return short.value

    new = tvm_ffi.structural_mutate(value, [(tirx.Cast, rounded)])
    return ShortValue(new, tuple(found)) if found else None
