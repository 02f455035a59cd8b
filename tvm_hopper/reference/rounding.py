"""Round to a program's types in float64, and bound the error.

The CPU code generator leaves out a rounding to bfloat16 and back, and makes a NaN of what a float8
cannot hold, where CUDA's conversions saturate.  So values are carried as float64 throughout, and a
type's rounding is arithmetic on their bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

F64 = "float64"
MANTISSA = 52  # explicit bits of a float64


@dataclass(frozen=True)
class FloatFormat:
    """A binary format: IEEE 754-2019, 3.3, and OCP 8-bit floating point specification 1.0.

    - `precision`: significant bits, the hidden one included.
    - `min_exponent`: of the smallest normal number, which is 2 ** min_exponent.
    - `saturates`: whether what is too large becomes the largest finite number (CUDA's conversions
      to 8 bits), and not an infinity.
    """

    precision: int
    min_exponent: int
    largest: float
    saturates: bool = False

    @property
    def roundoff(self) -> float:
        """Half the distance of 1 to the next number: the relative error of one rounding."""
        return 2.0**-self.precision

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with all its bits."""
        return 2.0**self.min_exponent

    @property
    def quantum(self) -> float:
        """The smallest positive number."""
        return 2.0 ** (self.min_exponent - self.precision + 1)


FORMATS = {
    "float8_e4m3fn": FloatFormat(4, -6, 448.0, True),
    "float8_e5m2": FloatFormat(3, -14, 57344.0, True),
    "float16": FloatFormat(11, -14, 65504.0),
    "bfloat16": FloatFormat(8, -126, float.fromhex("0x1.fep127")),
    "float32": FloatFormat(24, -126, float.fromhex("0x1.fffffep127")),
    "float64": FloatFormat(53, -1022, float.fromhex("0x1.fffffffffffffp1023")),
}

Name = Callable[[Any], Any]  # gives a value a name, so that it is computed once


def const(value: float) -> Any:
    """Return a float64 constant."""
    return tirx.const(value, F64)


def magnitude(value: Any) -> Any:
    """Return the absolute value of a float64."""
    return T.fabs(value)


def round_to(value: Any, dtype: str, name: Name) -> Any:
    """Round a float64 to the nearest number of a type, ties to even; the result is a float64."""
    fmt = FORMATS[dtype]
    if dtype == F64:
        return value
    if dtype == "float32":
        return name(tirx.Cast(F64, tirx.Cast("float32", value)))
    value = name(value)
    shift = MANTISSA + 1 - fmt.precision
    bits = name(T.reinterpret("int64", value))
    odd = T.bitwise_and(T.shift_right(bits, tirx.const(shift, "int64")), tirx.const(1, "int64"))
    up = bits + tirx.const((1 << shift - 1) - 1, "int64") + odd
    normal = T.reinterpret(F64, T.bitwise_and(up, tirx.const(-(1 << shift), "int64")))
    small = T.nearbyint(value * const(1 / fmt.quantum)) * const(fmt.quantum)
    tiny = magnitude(value) < const(fmt.smallest_normal)
    rounded = name(tirx.Select(tiny, small, normal))
    most = const(fmt.largest if fmt.saturates else float("inf"))
    over = magnitude(rounded) > const(fmt.largest)
    return name(tirx.Select(over, T.copysign(most, value), rounded))


def overflows(value: Any, dtype: str) -> Any:
    """Tell a number that a type does not hold, though float64 does: a kernel has infinity there."""
    size = magnitude(value)
    return tirx.And(size > const(FORMATS[dtype].largest), size < const(float("inf")))
