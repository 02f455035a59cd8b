"""Math functions of plain programs, and their error in other implementations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T


@dataclass(frozen=True)
class RealFunction:
    """A function of floats, monotone or convex in each argument on the pieces of its domain.

    So what errors of its arguments change is largest at the ends of their intervals.

    - `ulps`: units in the last place that a kernel's function may be off, about twice what the CUDA
      Math API states for float32 (table of maximum errors); 0: it is rounded correctly.
    - `least`: where its domain begins.
    - `slope`: for a function that is not monotone: the largest magnitude of its derivative.
    - `passed` (callable or None): for one whose derivative has no bound: how far errors move it,
      from its value, arguments and their errors.
    """

    compute: Callable[..., Any]
    ulps: int = 4
    least: float | None = None
    slope: float | None = None
    passed: Callable[..., Any] | None = None


UNKNOWN = tirx.const(float("inf"), "float64")


def _tan_moves(value: Any, args: list[Any], errors: list[Any]) -> Any:
    """Bound tan(x + e) - t = (1 + t^2) tan(e) / (1 - t tan(e)), far enough from a pole."""
    (error,), size = errors, T.fabs(value)
    near = error * (size + 1.0) < 0.25
    return tirx.Select(near, error * (size * size + 1.0) * 2.0, UNKNOWN)


def _atan2_moves(value: Any, args: list[Any], errors: list[Any]) -> Any:
    """Bound it by the errors over the distance from zero; it jumps where y is 0 and x negative."""
    (y, x), (y_error, x_error) = args, errors
    error = y_error + x_error
    least = T.max(T.fabs(x), T.fabs(y)) - error
    jumps = tirx.And(x - x_error < 0.0, T.fabs(y) <= y_error)
    unknown = tirx.And(error > 0.0, tirx.Or(least <= 0.0, tirx.And(jumps, y_error > 0.0)))
    return tirx.Select(unknown, UNKNOWN, tirx.Select(error > 0.0, error / least, error))


def _copysign_moves(value: Any, args: list[Any], errors: list[Any]) -> Any:
    """Pass on the error of the magnitude; a sign may turn where zero is as near as its error."""
    sure = tirx.Or(errors[1] <= 0.0, T.fabs(args[1]) > errors[1])
    return tirx.Select(sure, errors[0], errors[0] + T.fabs(value) * 2.0)


FUNCTIONS = {
    "exp": RealFunction(T.exp),
    "exp2": RealFunction(T.exp2),
    "exp10": RealFunction(T.exp10),
    "log": RealFunction(T.log, least=0.0),
    "log2": RealFunction(T.log2, least=0.0),
    "log10": RealFunction(T.log10, least=0.0),
    "log1p": RealFunction(T.log1p),
    "sqrt": RealFunction(T.sqrt, 0, least=0.0),
    "rsqrt": RealFunction(T.rsqrt, least=0.0),
    "sigmoid": RealFunction(T.sigmoid),
    "tanh": RealFunction(T.tanh),
    "erf": RealFunction(T.erf),
    "sinh": RealFunction(T.sinh, 8),
    "cosh": RealFunction(T.cosh, 8),
    "tan": RealFunction(T.tan, 8, passed=_tan_moves),
    "asinh": RealFunction(T.asinh, 8),
    "acosh": RealFunction(T.acosh, 8, least=1.0),
    "atanh": RealFunction(T.atanh, 8),
    "atan2": RealFunction(T.atan2, 8, passed=_atan2_moves),
    "hypot": RealFunction(T.hypot, 8),
    "copysign": RealFunction(T.copysign, 0, passed=_copysign_moves),
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
