"""Conversions (PTX ISA, 9.7.9.21 cvt): integers, floats, packed halves, 8-bit floats, tf32."""

from __future__ import annotations

import math

import numpy as np

from tvm_hopper.sim.arithmetic.exact import from_integers
from tvm_hopper.sim.arithmetic.floats import format_of
from tvm_hopper.sim.arithmetic.formats import (
    F32,
    F64,
    FORMATS,
    TF32,
    Array,
    Format,
    clamp_negative,
    decode,
    encode,
    flush,
    round_to,
    saturate,
)
from tvm_hopper.sim.arithmetic.integers import Mods, limits, numbers, pack, to_bits, unpack, width

_WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def cvt(mods: Mods, a: Array) -> Array:
    """Convert one value; wider registers are cut, and extended by the caller."""
    out, kind = mods["dtype"], mods["atype"]
    if kind in FORMATS:
        values = decode(a, FORMATS[kind])
        # To f16 an H200 rounds subnormal numbers as others, also with `.ftz`.
        if mods.get("ftz") and kind == "f32" and out != "f16":
            values = flush(values, F32)
        return _from_floats(mods, values) if out in FORMATS else _to_integers(mods, values)
    if out in FORMATS:
        form = FORMATS[out]
        rounded = from_integers(np.array(numbers(a, kind), object), form, mods["rnd"])
        return encode(saturate(rounded) if mods.get("sat") else rounded, form)
    whole = numbers(a, kind)
    if mods.get("sat"):
        low, high = limits(out)
        whole = [min(max(v, low), high) for v in whole]
    return to_bits(whole, width(out))


def _from_floats(mods: Mods, values: Array) -> Array:
    """Convert numbers to a floating-point type."""
    form, mode = FORMATS[mods["dtype"]], mods["rnd"]
    if mode in _WHOLE:
        values = _WHOLE[mode](values)
    elif mode and form is not F64:
        values = round_to(values, form, mode, finite=bool(mods.get("satfinite")))
    if mods.get("ftz") and form is F32:
        values = flush(values, form)
    if mods.get("sat"):
        values = saturate(values)
    if mods.get("relu"):
        values = clamp_negative(values)
    return encode(values, form)


def _to_integers(mods: Mods, values: Array) -> Array:
    """Convert numbers to integers, clamped to the type's range.

    NaN gives zero, or the highest bit alone if a 64-bit type takes part.
    """
    out = mods["dtype"]
    size, (low, high) = width(out), limits(out)
    nan = 1 << (size - 1) if mods["atype"] == "f64" or size == 64 else 0
    found = []
    for value in _WHOLE[mods["rnd"]](values):
        if math.isnan(value):
            found.append(nan)
        elif math.isinf(value):
            found.append(high if value > 0 else low)
        else:
            found.append(min(max(int(value), low), high))
    return to_bits(found, size)


def _narrow(mods: Mods, values: Array, form: Format) -> Array:
    """Round to a narrower format and encode."""
    rounded = round_to(values, form, mods["rnd"], finite=bool(mods.get("satfinite")))
    return encode(clamp_negative(rounded) if mods.get("relu") else rounded, form)


def to_pair(mods: Mods, a: Array, b: Array) -> Array:
    """Convert two f32 to a packed pair, the first one to the high half."""
    form, _ = format_of(mods["dtype"])
    return pack([_narrow(mods, decode(x, F32), form) for x in (b, a)], form.bits)


def between_pairs(mods: Mods, a: Array) -> Array:
    """Convert a packed pair to another one, element by element."""
    form, _ = format_of(mods["dtype"])
    source, count = format_of(mods["atype"])
    parts = [decode(x, source) for x in unpack(a, source.bits, count)]
    return pack([_narrow(mods, x, form) for x in parts], form.bits)


def to_tf32(mods: Mods, a: Array) -> Array:
    """Round f32 to tf32; the low 13 bits are zero."""
    bits = _narrow(mods, decode(a, F32), TF32)
    return bits
