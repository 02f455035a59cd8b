"""Elements of the tensor cores' types: bits of registers to numbers, sums to bits."""

from __future__ import annotations

import numpy as np

from tvm_hopper.sim.arithmetic.formats import FORMATS, Array, decode

BITS = {"b1": 1, "u4": 4, "s4": 4, "u8": 8, "s8": 8, "s32": 32} | {
    name: form.bits for name, form in FORMATS.items()
}
SUMS = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s32": np.int32}


def round_tf32(values: Array) -> Array:
    """Drop the 13 low mantissa bits of float32, as the tensor core does (9.7.15.5.2)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return bits.view(np.float32)


def elements_of(raw: Array, kind: str) -> Array:
    """Return the numbers in some registers, lowest bits first.

    Parameters
    ----------
    raw : np.ndarray
        uint8, shape (32, bytes of a lane).
    kind : str
        PTX's name of the elements' type.

    Returns
    -------
    np.ndarray
        float64, shape (32, elements of a lane).
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

    Parameters
    ----------
    total : np.ndarray
        float64; whole numbers below 2^53 for "s32".
    """
    with np.errstate(all="ignore"):
        if kind != "s32":
            return total.astype(SUMS[kind])
        if saturates:
            total = np.clip(total, -(2.0**31), 2.0**31 - 1)
        return total.astype(np.int64).astype(np.int32)
