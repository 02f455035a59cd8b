"""Sums, products, quotients and roots, rounded once in any of PTX's modes.

Operands of the 16- and 32-bit formats are float64 here. A product of two of them is exact in
float64; a sum is brought to float64 by rounding to odd, which a second rounding to at least two
bits less does not notice. float64 itself goes through fractions where numpy cannot round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from tvm_hopper.sim.arithmetic.formats import F64, Array, Format, round_to


def odd_sum(a: Array, b: Array) -> Array:
    """Return a + b in float64, rounded to odd."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)  # exact (Knuth, TAOCP 2, 4.2.2, theorem B)
    error = np.where(np.isfinite(total), error, 0.0)
    even = (total.view(np.int64) & 1) == 0
    neighbour = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even, neighbour, total)


def _signed_zero(total: Array, exact: Array, a: Array, b: Array, mode: str) -> Array:
    """Give an exact zero sum of unlike terms the sign minus when rounding down (IEEE 754, 6.3)."""
    if mode != "rm":
        return total
    plus = (a == 0) & ~np.signbit(a) & (b == 0) & ~np.signbit(b)
    return np.where((exact == 0) & ~plus, -0.0, total)


def add(a: Array, b: Array, form: Format, mode: str) -> Array:
    """Return a + b, rounded once."""
    if form is F64:
        total = _in_fractions(lambda x, y: x + y, mode, a + b, a, b)
        return _signed_zero(total, total, a, b, mode)
    exact = odd_sum(a, b)
    return _signed_zero(round_to(exact, form, mode), exact, a, b, mode)


def multiply(a: Array, b: Array, form: Format, mode: str) -> Array:
    """Return a * b, rounded once."""
    if form is F64:
        return _in_fractions(lambda x, y: x * y, mode, a * b, a, b)
    return round_to(a * b, form, mode)


def multiply_add(a: Array, b: Array, c: Array, form: Format, mode: str) -> Array:
    """Return a * b + c, rounded once."""
    product = a * b
    if form is not F64:
        exact = odd_sum(product, c)
        return _signed_zero(round_to(exact, form, mode), exact, product, c, mode)
    total = product + c
    out = np.array(np.broadcast_to(total, np.broadcast_shapes(a.shape, b.shape, c.shape)))
    a, b, c = (np.broadcast_to(x, out.shape) for x in (a, b, c))
    for i in range(out.size):
        if all(map(math.isfinite, (a[i], b[i], c[i]))) and a[i] and b[i]:
            whole = Fraction(a[i]) * Fraction(b[i]) + Fraction(c[i])
            # An exact zero has the sign of a sum of unlike terms.
            negative = whole < 0 or (not whole and mode == "rm")
            out[i] = math.copysign(round_fraction(whole, F64, mode), -1.0 if negative else 1.0)
        elif math.isfinite(a[i]) and math.isfinite(b[i]) and not math.isfinite(c[i]):
            out[i] = c[i]  # also where the product by itself would be infinite
        elif total[i] == 0:
            here = slice(i, i + 1)
            out[i] = _signed_zero(total[here], total[here], product[here], c[here], mode)[0]
    return out


def divide(a: Array, b: Array, form: Format, mode: str) -> Array:
    """Return a / b, rounded once.

    No quotient of two numbers of p bits lies so close to a number of p + 1 bits that float64 with
    its 2p + 5 bits and more would hide on which side of it.
    """
    if form is F64:
        return _in_fractions(lambda x, y: x / y, mode, a / b, a, b)
    return round_to(a / b, form, mode)


def root(a: Array, form: Format, mode: str) -> Array:
    """Return the square root of a, rounded once; as for quotients."""
    plain = np.sqrt(a)
    if form is not F64:
        return round_to(plain, form, mode)
    if mode == "rn":
        return plain
    out = plain.copy()
    for i, value in enumerate(a):
        if math.isfinite(value) and value > 0:
            square = Fraction(float(plain[i])) ** 2
            if mode == "rp" and square < Fraction(float(value)):
                out[i] = math.nextafter(plain[i], math.inf)
            elif mode != "rp" and square > Fraction(float(value)):
                out[i] = math.nextafter(plain[i], 0.0)
    return out


def _in_fractions(
    operation: Callable[[Fraction, Fraction], Fraction], mode: str, plain: Array, a: Array, b: Array
) -> Array:
    """Round a float64 result in a directed mode; `plain` is the one to nearest."""
    if mode == "rn":
        return plain
    out = plain.copy()
    a, b = np.broadcast_to(a, out.shape), np.broadcast_to(b, out.shape)
    for i in range(out.size):
        if math.isfinite(a[i]) and math.isfinite(b[i]) and not math.isnan(plain[i]):
            if math.isinf(plain[i]) and b[i] == 0:
                continue  # a division by zero
            exact = operation(Fraction(a[i]), Fraction(b[i]))
            if exact:
                out[i] = round_fraction(exact, F64, mode)
    return out


_WHOLE: dict[str, Callable[[Fraction], int]] = {
    "rn": round,
    "rz": math.trunc,
    "rm": math.floor,
    "rp": math.ceil,
}


def round_fraction(exact: Fraction, form: Format, mode: str) -> float:
    """Return a fraction rounded to a format; modes as in `round_to`, without "rna"."""
    if not exact:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    quantum = max(exponent, form.least) - (form.precision - 1)
    sign = -1.0 if exact < 0 else 1.0
    scaled = exact / Fraction(2) ** quantum
    number = _WHOLE[mode](scaled)
    rounded = number * Fraction(2) ** quantum
    if abs(rounded) > Fraction(form.largest):
        down = {"rn": False, "rz": True, "rm": exact > 0, "rp": exact < 0}[mode]
        return math.copysign(form.largest if down else math.inf, sign)
    return math.copysign(float(rounded), sign)


def from_integers(values: Array, form: Format, mode: str) -> Array:
    """Return integers of up to 64 bits as numbers of a format, rounded once, as float64."""
    return np.array([round_fraction(Fraction(int(v)), form, mode) for v in values], np.float64)


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


def multiply_add_f64(a: Array, b: Array, c: Array, mode: str) -> Array:
    """Return many a * b + c of float64, each rounded once.

    To nearest by rounding the sum of the errors to odd (Boldo and Melquiond, "Emulation of FMA and
    correctly rounded sums", 2008); by fractions where a number is too large or too small for that,
    and in the other modes.

    - `a`, `b`, `c`: float64, of one shape.
    - `mode`: "rn", "rz", "rm" or "rp".
    """
    with np.errstate(all="ignore"):
        high, low = _two_product(a, b)
        part, rest = _two_sum(c, low)
        top, remainder = _two_sum(high, part)
        result = top + odd_sum(remainder, rest)
        plain = np.ones(a.shape, bool)
        for value in (a, b, c, high):
            size = np.abs(value)
            plain &= (size == 0) | (size > _LEAST) & (size < _MOST)
        plain &= (np.abs(result) > _LEAST) & (mode == "rn")
        hard = ~plain
        if hard.any():
            result[hard] = multiply_add(a[hard], b[hard], c[hard], F64, mode)
    return result
