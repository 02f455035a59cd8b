"""Many fused multiply-adds of float64 at once, rounded once."""

from __future__ import annotations

import numpy as np

from tvm_hopper.sim.arithmetic import exact
from tvm_hopper.sim.arithmetic.formats import F64, Array

_SPLIT = 2.0**27 + 1  # Veltkamp's constant of a 53-bit format
_LEAST, _MOST = 2.0**-400, 2.0**400  # between, no part below leaves the range of float64


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a + b and its error, exact (Knuth, TAOCP 2, 4.2.2, theorem B)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a * b and its error, exact (Dekker, 1971)."""
    product = a * b
    a_high = _SPLIT * a - (_SPLIT * a - a)
    b_high = _SPLIT * b - (_SPLIT * b - b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def multiply_add(a: Array, b: Array, c: Array, mode: str) -> Array:
    """Return a * b + c, rounded once.

    To nearest by rounding the sum of the errors to odd (Boldo and Melquiond, "Emulation of FMA and
    correctly rounded sums", 2008); by fractions where a number is too large or too small for that,
    and in the other modes.

    Parameters
    ----------
    a, b, c : np.ndarray
        float64, of one shape.
    mode : str
        "rn", "rz", "rm" or "rp".
    """
    with np.errstate(all="ignore"):
        high, low = _two_product(a, b)
        part, rest = _two_sum(c, low)
        top, remainder = _two_sum(high, part)
        result = top + exact.odd_sum(remainder, rest)
        plain = np.ones(a.shape, bool)
        for value in (a, b, c, high):
            size = np.abs(value)
            plain &= (size == 0) | (size > _LEAST) & (size < _MOST)
        plain &= (np.abs(result) > _LEAST) & (mode == "rn")
        hard = ~plain
        if hard.any():
            result[hard] = exact.multiply_add(a[hard], b[hard], c[hard], F64, mode)
    return result
