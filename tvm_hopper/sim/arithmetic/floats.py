"""Floating-point arithmetic that PTX defines to the last bit (PTX ISA, 9.7.3, 9.7.4, 9.7.5).

One function for `f32`, `f64`, `f16`, `bf16` and their packed pairs: operands are decoded, computed
exactly, rounded once, flushed and clamped, and encoded. A result is flushed after it is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_hopper.sim.arithmetic import exact
from tvm_hopper.sim.arithmetic.formats import (
    FORMATS,
    Array,
    Format,
    clamp_negative,
    decode,
    encode,
    flush,
    saturate,
)
from tvm_hopper.sim.arithmetic.integers import Mods, pack, unpack


def format_of(kind: str) -> tuple[Format, int]:
    """Return the format of a type's elements and how many a register holds."""
    name, _, count = kind.partition("x")
    return FORMATS[name], int(count or 1)


def lanewise(kind: str, function: Callable[..., Array], *operands: Array) -> Array:
    """Apply a function of bits to each element of packed registers."""
    form, count = format_of(kind)
    if count == 1:
        return function(form, *operands)
    parts = [unpack(o, form.bits, count) for o in operands]
    return pack([function(form, *(p[i] for p in parts)) for i in range(count)], form.bits)


def compute(mods: Mods, function: Callable[..., Array], *operands: Array) -> Array:
    """Apply a function of numbers: (operands..., form) -> rounded numbers."""

    def each(form: Format, *bits: Array) -> Array:
        values = [decode(b, form) for b in bits]
        if mods.get("ftz"):
            values = [flush(v, form) for v in values]
        result = function(*values, form)
        if mods.get("ftz"):
            result = flush(result, form)
        if mods.get("sat"):
            result = saturate(result)
        if mods.get("relu"):
            result = clamp_negative(result)
        return encode(result, form)

    return lanewise(mods["type"], each, *operands)


def _rounded(function: Callable[..., Array]) -> Callable[..., Array]:
    """Lift a function of numbers that rounds once in a mode: (operands..., form, mode)."""

    def apply(mods: Mods, *operands: Array) -> Array:
        mode = mods.get("rnd") or mods.get("mode") or "rn"
        return compute(mods, lambda *x: function(*x, mode), *operands)

    return apply


add, mul = _rounded(exact.add), _rounded(exact.multiply)
sub = _rounded(lambda x, y, form, mode: exact.add(x, -y, form, mode))
fma = _rounded(exact.multiply_add)  # `mad` is the same (9.7.3.7)
rcp = _rounded(lambda x, form, mode: exact.divide(np.ones_like(x), x, form, mode))  # 9.7.3.13
sqrt = _rounded(exact.root)  # 9.7.3.15


def div(mods: Mods, a: Array, b: Array) -> Array:
    """Return a / b in an IEEE mode (9.7.3.8); `.ftz` flushes before rounding, as an H200 does."""

    def quotient(x: Array, y: Array, form: Format) -> Array:
        plain, rounded = x / y, exact.divide(x, y, form, mods["mode"])
        tiny = np.abs(plain) < 2.0**form.least
        return np.where(tiny, np.copysign(0.0, plain), rounded) if mods.get("ftz") else rounded

    return compute(mods, quotient, a, b)


def _sign(form: Format) -> Any:
    return form.carrier.type(1 << (form.bits - 1))


def _flushed(mods: Mods, form: Format, bits: Array) -> Array:
    if not mods.get("ftz"):
        return bits
    subnormal = np.abs(decode(bits, form)) < 2.0**form.least
    return np.where(subnormal, bits & _sign(form), bits)


def absolute(mods: Mods, a: Array) -> Array:
    """Clear the sign."""
    return lanewise(mods["type"], lambda f, x: _flushed(mods, f, x & ~_sign(f)), a)


def neg(mods: Mods, a: Array) -> Array:
    """Flip the sign."""
    return lanewise(mods["type"], lambda f, x: _flushed(mods, f, x ^ _sign(f)), a)


def copysign(mods: Mods, a: Array, b: Array) -> Array:
    """Return b with the sign of a (9.7.3.2)."""
    return lanewise(mods["type"], lambda f, x, y: (x & _sign(f)) | (y & ~_sign(f)), a, b)


def testp(mods: Mods, a: Array) -> Array:
    """Tell a property of a number; zeros count as normal (9.7.3.1)."""
    form, _ = format_of(mods["type"])
    value = decode(a, form)
    finite, nan = np.isfinite(value), np.isnan(value)
    subnormal = (np.abs(value) < 2.0**form.least) & (value != 0)
    found: dict[str, Array] = {
        "finite": finite,
        "infinite": np.isinf(value),
        "number": ~nan,
        "notanumber": nan,
        "normal": finite & ~subnormal,
        "subnormal": subnormal,
    }
    return found[mods["op"]]


def _extreme(largest: bool) -> Callable[..., Array]:
    def choose(mods: Mods, a: Array, b: Array) -> Array:
        def pick(x: Array, y: Array, form: Format) -> Array:
            sign = np.signbit(x) ^ np.signbit(y)
            if mods.get("abs"):
                x, y = np.abs(x), np.abs(y)
            above = (x > y) | ((x == y) & ~np.signbit(x))  # +0 is above -0
            result = np.where(above == largest, x, y)
            result = np.where(np.isnan(x), y, np.where(np.isnan(y), x, result))
            if mods.get("nan"):
                result = np.where(np.isnan(x) | np.isnan(y), np.nan, result)
            if mods.get("xorsign"):
                result = np.where(sign, -np.abs(result), np.abs(result))
            return result

        return compute({**mods, "relu": ""}, pick, a, b)

    return choose


minimum, maximum = _extreme(False), _extreme(True)
