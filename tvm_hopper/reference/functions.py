"""The functions that a plain program may call: how they are computed, and how well elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T


@dataclass(frozen=True)
class RealFunction:
    """A function of floats, monotone in each argument on the pieces of its domain.

    Attributes
    ----------
    ulps : int
        Units in the last place that a kernel's function may be off, about twice what the CUDA Math
        API states for float32 (table of maximum errors); 0: it is rounded correctly.
    from_zero : bool
        Its domain begins at zero.
    slope : float or None
        For a function that is not monotone: the largest magnitude of its derivative.
    """

    compute: Callable[..., Any]
    ulps: int = 4
    from_zero: bool = False
    slope: float | None = None


FUNCTIONS = {
    "exp": RealFunction(T.exp),
    "exp2": RealFunction(T.exp2),
    "exp10": RealFunction(T.exp10),
    "log": RealFunction(T.log, from_zero=True),
    "log2": RealFunction(T.log2, from_zero=True),
    "log10": RealFunction(T.log10, from_zero=True),
    "log1p": RealFunction(T.log1p),
    "sqrt": RealFunction(T.sqrt, 0, from_zero=True),
    "rsqrt": RealFunction(T.rsqrt, from_zero=True),
    "sigmoid": RealFunction(T.sigmoid),
    "tanh": RealFunction(T.tanh),
    "erf": RealFunction(T.erf),
    "sinh": RealFunction(T.sinh, 8),
    "asinh": RealFunction(T.asinh, 8),
    "atan": RealFunction(T.atan),
    "asin": RealFunction(T.asin, 8),
    "acos": RealFunction(T.acos),
    "sin": RealFunction(T.sin, slope=1.0),
    "cos": RealFunction(T.cos, slope=1.0),
    "pow": RealFunction(T.pow, 16),
    "fabs": RealFunction(T.fabs, slope=1.0),
    "floor": RealFunction(T.floor),
    "ceil": RealFunction(T.ceil),
    "trunc": RealFunction(T.trunc),
    "nearbyint": RealFunction(T.nearbyint),
    "round": RealFunction(T.round),
}
EXACT_CALLS = {"fabs", "floor", "ceil", "trunc", "nearbyint", "round"}  # never rounded
DISCRETE = {"isnan": T.isnan}
INTEGER_CALLS: dict[str, Callable[..., Any]] = {
    "bitwise_and": T.bitwise_and,
    "bitwise_or": T.bitwise_or,
    "bitwise_xor": T.bitwise_xor,
    "bitwise_not": T.bitwise_not,
    "shift_left": T.shift_left,
    "shift_right": T.shift_right,
    "fabs": lambda x: tirx.abs(x),
    "abs": lambda x: tirx.abs(x),
}
