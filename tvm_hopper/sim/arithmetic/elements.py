"""Elements of the tensor cores' types: bits of registers to numbers, sums to bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.facts.arch import FLOAT8_SUM_BITS
from tvm_hopper.sim.arithmetic.formats import F32, F64, FORMATS, Array, decode

BITS = {"b1": 1, "u4": 4, "s4": 4, "u8": 8, "s8": 8, "s32": 32} | {
    name: form.bits for name, form in FORMATS.items()
}
FLOAT8 = ("e4m3", "e5m2")
NO_PRODUCT = -(2.0**13)  # exponent of zero, below all others
LEAST_PRODUCT = -28.0  # exponent of the smallest product: of two normal numbers of e5m2
FRACTION_OF_SUM = np.uint32(0xFFFFFFFF << 23 - FLOAT8_SUM_BITS & 0xFFFFFFFF)
SUMS = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s32": np.int32}


def round_tf32(values: Array) -> Array:
    """Drop the 13 low mantissa bits of float32, as the tensor core does (9.7.15.5.2)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return bits.view(np.float32)


def elements_of(raw: Array, kind: str) -> Array:
    """Return the numbers in some registers, lowest bits first.

    - `raw`: uint8, shape (32, bytes of a lane).
    - `kind`: PTX's name of the elements' type.
    - returns: float64, shape (32, elements of a lane).
    """
    raw, bits = np.ascontiguousarray(raw), BITS[kind]
    if kind == "tf32":
        return round_tf32(raw.view(np.float32)).astype(np.float64)
    if kind in FORMATS:
        return decode(raw.view(f"uint{bits}"), FORMATS[kind])
    if bits >= 8:
        return raw.view(f"{'int' if kind[0] == 's' else 'uint'}{bits}").astype(np.float64)
    per_byte = 8 // bits
    parts = raw[:, :, None] >> (np.arange(per_byte, dtype=np.uint8) * np.uint8(bits))
    values = (parts & ((1 << bits) - 1)).reshape(len(raw), -1).astype(np.float64)
    return np.where(values >= 8, values - 16, values) if kind == "s4" else values


def rounded_sum(total: Array, kind: str, saturates: bool = False) -> Array:
    """Return exact sums as the type of an accumulator.

    Integers wrap around, or end at the limits of s32 (`.satfinite`); floats are rounded to the
    nearest.

    - `total`: float64; whole numbers below 2^53 for "s32".
    """
    with np.errstate(all="ignore"):
        if kind != "s32":
            return total.astype(SUMS[kind])
        if saturates:
            total = np.clip(total, -(2.0**31), 2.0**31 - 1)
        return total.astype(np.int64).astype(np.int32)


def float8_sum(a: Array, b: Array, kinds: tuple[str, str], start: Array) -> Array:
    """Return `start` + a b' as WGMMA sums float8 in float32 (`facts.arch.FLOAT8_SUM_BITS`).

    - `a`, `b`, `start`: float32, shapes (rows, k), (columns, k), (rows, columns).
    - `kinds`: PTX's names of the types of a and b.
    """
    left, right = (_exponents(x.T, kind) for x, kind in zip((a, b), kinds, strict=True))
    columns, rows = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
    largest = np.full(start.shape, NO_PRODUCT, np.float32)
    part = np.empty_like(largest)
    for one, other in zip(left, right, strict=True):
        np.maximum(largest, np.add(one[:, None], other, out=part), out=largest)
    largest = np.maximum(largest, _exponents(start, "f32"))
    # In float32 all of this is exact: at most 32 products below 4 of the largest exponent.
    scale = _power_of_two(FLOAT8_SUM_BITS - np.maximum(largest, LEAST_PRODUCT))
    total = np.zeros_like(part)
    with np.errstate(invalid="ignore", over="ignore"):
        for one, other in zip(columns, rows, strict=True):
            np.multiply(one[:, None], other, out=part)
            total += np.trunc(np.multiply(part, scale, out=part), out=part)
        total /= scale  # below LEAST_PRODUCT there are no products
        wide = _power_of_two(
            FLOAT8_SUM_BITS - np.maximum(largest, FORMATS["f32"].least), np.float64
        )
        found = (total + np.trunc(start * wide) / wide).astype(np.float32)
    cut = (found.view(np.uint32) & FRACTION_OF_SUM).view(np.float32)
    if all(np.isfinite(x).all() for x in (a, b, start)):
        return cut
    with np.errstate(invalid="ignore"):
        plain = a @ b.T + start
    return np.where(np.isfinite(plain), cut, plain)


def _exponents(values: Array, kind: str) -> Array:
    """Return exponents as they are stored, that of zero far below all others."""
    field = np.ascontiguousarray(values, np.float32).view(np.uint32) >> np.uint32(23)
    exponents = (field & np.uint32(0xFF)).astype(np.int32) - 127
    found = np.maximum(exponents, FORMATS[kind].least)
    return np.where(values == 0, NO_PRODUCT, found).astype(np.float32)


def _power_of_two(exponents: Array, dtype: Any = np.float32) -> Array:
    """Return 2 ** exponents, of normal numbers."""
    form = {np.float32: F32, np.float64: F64}[dtype]
    fraction = form.precision - 1
    return ((exponents.astype(np.int64) + form.most) << fraction).astype(form.carrier).view(dtype)
