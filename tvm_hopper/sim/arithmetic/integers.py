"""Integer arithmetic of PTX (PTX ISA, 9.7.1 and 9.7.2): wrap-around, saturation, high halves.

Operands are bits in unsigned arrays; types that are packed have their lanes side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvm_hopper.sim.arithmetic.formats import Array

Mods = Mapping[str, str]


def width(kind: str) -> int:
    """Return the bits of one element of a type ("u16x2": 16)."""
    return int(kind.partition("x")[0][1:])


def lanes(kind: str) -> int:
    """Return the elements of a register of a type."""
    return int(kind.partition("x")[2] or 1)


def unpack(bits: Array, size: int, count: int) -> list[Array]:
    """Split registers into elements of `size` bits, the lowest first."""
    kind = np.dtype(f"uint{size}")
    mask = bits.dtype.type((1 << size) - 1)
    shifts = [bits.dtype.type(size * i) for i in range(count)]
    return [((bits >> shift) & mask).astype(kind) for shift in shifts]


def pack(parts: list[Array], size: int) -> Array:
    """Put elements of `size` bits side by side, the lowest first."""
    kind = np.dtype(f"uint{size * len(parts)}")
    total = np.zeros(np.broadcast_shapes(*(p.shape for p in parts)), kind)
    for i, part in enumerate(parts):
        total |= part.astype(kind) << kind.type(size * i)
    return total


def numbers(bits: Array, kind: str) -> list[int]:
    """Return the integers that bits represent, of any size."""
    sign = "int" if kind[0] == "s" else "uint"
    return [
        int(x)
        for x in np.ascontiguousarray(bits, f"uint{width(kind)}").view(f"{sign}{width(kind)}")
    ]


def limits(kind: str) -> tuple[int, int]:
    """Return the least and the largest number of a type."""
    size = width(kind)
    return (-(1 << size - 1), (1 << size - 1) - 1) if kind[0] == "s" else (0, (1 << size) - 1)


def to_bits(values: list[int], size: int) -> Array:
    """Return integers modulo two to the power of `size`."""
    return np.array([v & ((1 << size) - 1) for v in values], f"uint{size}")


def _each(
    function: Callable[..., int], kinds: list[str], out: str, *operands: Array, sat: bool = False
) -> Array:
    """Apply a function of integers to each lane; the result wraps or is clamped to `out`."""
    length = max(o.size for o in operands)
    columns = [
        numbers(np.broadcast_to(o, (length,)), k) for o, k in zip(operands, kinds, strict=True)
    ]
    values = [function(*row) for row in zip(*columns, strict=True)]
    if sat:
        low, high = limits(out)
        values = [min(max(v, low), high) for v in values]
    return to_bits(values, width(out))


def _typed(function: Callable[..., int]) -> Callable[..., Array]:
    """Lift a function of integers of the instruction's type, packed or not."""

    def apply(mods: Mods, *operands: Array) -> Array:
        kind, sat = mods["type"], bool(mods.get("sat"))
        base, count = f"{kind[0]}{width(kind)}", lanes(kind)
        parts = [unpack(o, width(kind), count) for o in operands] if count > 1 else []
        kinds = [base] * len(operands)
        if count == 1:
            return _each(function, kinds, base, *operands, sat=sat)
        found = [
            _each(function, kinds, base, *(p[i] for p in parts), sat=sat) for i in range(count)
        ]
        return pack(found, width(kind))

    return apply


def _quotient(a: int, b: int) -> int:
    """Divide towards zero; the result of a division by zero is machine-specific, here all ones."""
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int:
    return a - _quotient(a, b) * b if b else a


add = _typed(lambda a, b: a + b)
sub = _typed(lambda a, b: a - b)
div = _typed(_quotient)
rem = _typed(_remainder)
sad = _typed(lambda a, b, c: c + abs(a - b))
absolute = _typed(abs)
neg = _typed(lambda a: -a)


def _extreme(choose: Callable[[int, int], int]) -> Callable[..., Array]:
    plain = _typed(choose)
    positive = _typed(lambda a, b: max(choose(a, b), 0))

    def apply(mods: Mods, a: Array, b: Array) -> Array:
        return (positive if mods.get("relu") else plain)(mods, a, b)

    return apply


minimum, maximum = _extreme(min), _extreme(max)


def _product(size: int, mode: str) -> Callable[[int, int], int]:
    return (lambda a, b: a * b >> size) if mode == "hi" else (lambda a, b: a * b)


def mul(mods: Mods, a: Array, b: Array) -> Array:
    """Return the high or low half of a product (9.7.1.3)."""
    return _typed(_product(width(mods["type"]), mods["mode"]))(mods, a, b)


def mul_wide(mods: Mods, a: Array, b: Array) -> Array:
    """Return a product of twice the width."""
    kind = mods["type"]
    return _each(lambda x, y: x * y, [kind] * 2, f"{kind[0]}{2 * width(kind)}", a, b)


def mad(mods: Mods, a: Array, b: Array, c: Array) -> Array:
    """Return the half of a product plus c; `.hi.sat` clamps the sum (9.7.1.4)."""
    half = _product(width(mods["type"]), mods["mode"])
    if mods["mode"] == "lo":
        size = width(mods["type"])

        def low(x: int, y: int) -> int:
            return x * y & ((1 << size) - 1)

        half = low
    return _typed(lambda x, y, z: half(x, y) + z)(mods, a, b, c)


def mad_wide(mods: Mods, a: Array, b: Array, c: Array) -> Array:
    """Return a product of twice the width plus c."""
    kind = mods["type"]
    out = f"{kind[0]}{2 * width(kind)}"
    return _each(lambda x, y, z: x * y + z, [kind, kind, out], out, a, b, c)


def _product24(kind: str, mode: str) -> Callable[[int, int], int]:
    def half(a: int, b: int) -> int:
        a, b = (_low_bits(x, 24, kind[0] == "s") for x in (a, b))
        return a * b >> 16 if mode == "hi" else a * b

    return half


def _low_bits(value: int, count: int, signed: bool) -> int:
    value &= (1 << count) - 1
    return value - (1 << count) if signed and value >> (count - 1) else value


def mul24(mods: Mods, a: Array, b: Array) -> Array:
    """Return bits 47 to 16, or 31 to 0, of a product of 24-bit integers (9.7.1.5)."""
    return _typed(_product24(mods["type"], mods["mode"]))(mods, a, b)


def mad24(mods: Mods, a: Array, b: Array, c: Array) -> Array:
    """Return `mul24` plus c; `.hi.sat` clamps the sum (9.7.1.6)."""
    half = _product24(mods["type"], mods["mode"])
    return _typed(lambda x, y, z: half(x, y) + z)(mods, a, b, c)


def _elements(word: int, size: int, signed: bool) -> list[int]:
    return [_low_bits(word >> size * i, size, signed) for i in range(32 // size)]


def _dot(mods: Mods, size: int, operands: tuple[Array, Array, Array]) -> Array:
    signed = [mods[name] == "s32" for name in ("atype", "btype")]
    first = 2 if mods.get("mode") == "hi" else 0
    out = "s32" if any(signed) else "u32"

    def dot(a: int, b: int, c: int) -> int:
        left, right = _elements(a, size, signed[0]), _elements(b, 8, signed[1])[first:]
        return c + sum(x * y for x, y in zip(left, right, strict=False))

    return _each(dot, ["u32", "u32", out], out, *operands)


def dp4a(mods: Mods, a: Array, b: Array, c: Array) -> Array:
    """Add the products of four pairs of bytes to c (9.7.1.23)."""
    return _dot(mods, 8, (a, b, c))


def dp2a(mods: Mods, a: Array, b: Array, c: Array) -> Array:
    """Add two products of 16-bit and 8-bit elements to c (9.7.1.24)."""
    return _dot(mods, 16, (a, b, c))


def cvt_pack(mods: Mods, a: Array, b: Array, c: Any = None) -> Array:
    """Saturate two integers into the low bits of d, b lowest, c above them (9.7.9.22)."""
    kind = mods["convert"]
    size, (low, high) = int(kind[1:]), limits(kind)

    def join(x: int, y: int, z: int) -> int:
        mask = (1 << size) - 1
        first, second = (min(max(v, low), high) & mask for v in (x, y))
        return first << size | second | z << 2 * size

    rest = c if c is not None else np.zeros(1, np.uint32)
    return _each(join, ["s32", "s32", "u32"], "u32", a, b, rest)
