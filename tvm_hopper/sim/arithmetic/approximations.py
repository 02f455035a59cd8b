"""Approximations (`.approx`, `.full`): the nearest number, and how far the chip may be from it.

These functions return the exact result, rounded to nearest. PTX promises only a bound, and a chip
may differ within it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tvm_hopper.sim.arithmetic.floats import compute
from tvm_hopper.sim.arithmetic.formats import F32, Array, Format, round_to
from tvm_hopper.sim.arithmetic.integers import Mods


@dataclass(frozen=True)
class Bound:
    """An error bound as PTX states it.

    - `kind`: "ulp" (of the correctly rounded result), "relative" or "absolute".
    - `value`: the largest error.
    - `least`, `most`: of the magnitude of the last operand, where the bound holds.
    - `section`: of PTX ISA 9.1.
    """

    kind: str
    value: float
    section: str
    least: float = 0.0
    most: float = np.inf


_PI = 3.141592653589793
_ANGLES = (
    Bound("absolute", 2.0**-20.5, "", 0.0, 2 * _PI),
    Bound("absolute", 2.0**-14.7, "", 0.0, 100 * _PI),
)


def _angles(section: str) -> tuple[Bound, ...]:
    return tuple(Bound(b.kind, b.value, section, b.least, b.most) for b in _ANGLES)


# By instruction and format: the first bound whose range holds the operand counts. An operand in
# no range (an angle beyond 100 pi) has no bound.
BOUNDS: dict[tuple[str, str], tuple[Bound, ...]] = {
    ("div.approx", "f32"): (Bound("ulp", 2, "9.7.3.8", 2.0**-126, 2.0**126),),
    ("div.full", "f32"): (Bound("ulp", 2, "9.7.3.8"),),
    ("rcp", "f32"): (Bound("ulp", 1, "9.7.3.13"),),
    ("sqrt", "f32"): (Bound("relative", 2.0**-23, "9.7.3.15"),),
    ("rsqrt", "f32"): (Bound("relative", 2.0**-22.9, "9.7.3.16"),),
    ("sin", "f32"): _angles("9.7.3.18"),
    ("cos", "f32"): _angles("9.7.3.19"),
    ("lg2", "f32"): (
        Bound("absolute", 2.0**-22, "9.7.3.20", 0.5, 2.0),
        Bound("relative", 2.0**-22, "9.7.3.20"),
    ),
    ("ex2", "f32"): (Bound("ulp", 2, "9.7.3.21"),),
    ("tanh", "f32"): (Bound("relative", 2.0**-11, "9.7.3.22"),),
    ("tanh", "f16"): (Bound("absolute", 2.0**-10.987, "9.7.4.9"),),
    ("tanh", "bf16"): (Bound("absolute", 2.0**-8, "9.7.4.9"),),
    # PTX states the first for all operands; subnormal results of an H200 differ by one step.
    ("ex2", "f16"): (
        Bound("relative", 2.0**-9.9, "9.7.4.10", 0.0, 14.0),
        Bound("ulp", 2, "9.7.4.10", 14.0),
    ),
    ("ex2", "bf16"): (Bound("relative", 2.0**-7, "9.7.4.10"),),
}


def bound_of(bounds: tuple[Bound, ...], operand: float) -> Bound | None:
    """Return the bound that holds for an operand."""
    size = abs(operand)
    return next((b for b in bounds if b.least <= size <= b.most), None)


def ulp(value: float, form: Format) -> float:
    """Return the distance of the numbers of a format around a value."""
    exponent = int(np.frexp(value)[1]) - 1 if value else form.least
    return float(2.0 ** (max(exponent, form.least) - form.precision + 1))


def error_in_bound(bound: Bound, got: float, exact: float, form: Format) -> float:
    """Return the error of a finite result as a part of the bound; at most 1 is right."""
    distance = abs(got - exact)
    if bound.kind == "ulp":
        return distance / (bound.value * ulp(exact, form))
    if bound.kind == "relative":
        return distance / (bound.value * abs(exact)) if exact else (0.0 if got == 0 else np.inf)
    return distance / bound.value


def _nearest(function: Callable[[Array], Array]) -> Callable[..., Array]:
    def apply(mods: Mods, a: Array) -> Array:
        return compute(mods, lambda x, form: round_to(function(x), form, "rn"), a)

    return apply


# The exact functions, in float64.
EXACT: dict[str, Callable[..., Array]] = {
    "div.approx": np.divide,
    "div.full": np.divide,
    "rcp": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "lg2": np.log2,
    "ex2": np.exp2,
    "tanh": np.tanh,
}
NEAREST = {name: _nearest(function) for name, function in EXACT.items()}


def div(mods: Mods, a: Array, b: Array) -> Array:
    """Return a / b; `.approx` as a times 1/b where b is beyond 2**126 (9.7.3.8)."""

    def quotient(x: Array, y: Array, form: Format) -> Array:
        result = round_to(x / y, F32, "rn")
        if mods["mode"] == "full":
            return result
        beyond = (np.abs(y) > 2.0**126) & np.isfinite(y)
        gone = np.where(np.isfinite(x), np.copysign(0.0, x) * np.sign(y), np.nan)
        return np.where(beyond, gone, result)

    return compute(mods, quotient, a, b)
