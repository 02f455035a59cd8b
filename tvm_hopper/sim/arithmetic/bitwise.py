"""Logic, shifts, and bit fields (PTX ISA, 9.7.1.13 to 9.7.1.22, 9.7.8, 9.7.9.7 prmt)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tvm_hopper.sim.arithmetic.formats import Array
from tvm_hopper.sim.arithmetic.integers import Mods, numbers, pack, to_bits, unpack, width

_ALL32 = 0xFFFFFFFF


def _bits_of(mods: Mods) -> int:
    return width(mods["type"])


def _words(
    function: Callable[..., int], size: int, *operands: Array, sizes: tuple[int, ...] = ()
) -> Array:
    """Apply a function of unsigned integers lane by lane; `sizes` are those of the operands."""
    length = max(o.size for o in operands)
    sizes = sizes or (size,) * len(operands)
    columns = [
        numbers(np.broadcast_to(o, (length,)), f"u{s}")
        for o, s in zip(operands, sizes, strict=True)
    ]
    return to_bits([function(*row) for row in zip(*columns, strict=True)], size)


# -- logic ----------------------------------------------------------------------------------------


def lop3(mods: Mods, a: Array, b: Array, c: Array, table: int) -> Array:
    """Look up each bit of a, b, c in a table of eight (9.7.8.6)."""
    out = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.uint32)
    for row in range(8):
        if table >> row & 1:
            bits = [x if row >> shift & 1 else ~x for x, shift in ((a, 2), (b, 1), (c, 0))]
            out |= bits[0] & bits[1] & bits[2]
    return out


def lop3_bool(
    mods: Mods, a: Array, b: Array, c: Array, table: int, q: Array
) -> tuple[Array, Array]:
    """Return `lop3`, and whether it differs from zero, combined with q."""
    word = lop3(mods, a, b, c, table)
    found = word != 0
    return word, found | q if mods["boolop"] == "or" else found & q


def lop3_bool_sink(mods: Mods, a: Array, b: Array, c: Array, table: int, q: Array) -> Array:
    """Return the predicate of `lop3_bool` alone."""
    return lop3_bool(mods, a, b, c, table, q)[1]


# -- shifts ---------------------------------------------------------------------------------------


def shl(mods: Mods, a: Array, b: Array) -> Array:
    """Shift left; by the width or more gives zero (9.7.8.8)."""
    size = _bits_of(mods)
    return _words(lambda x, n: x << min(n, size), size, a, b, sizes=(size, 32))


def shr(mods: Mods, a: Array, b: Array) -> Array:
    """Shift right, filling with the sign of signed types; by at most the width (9.7.8.9)."""
    size, signed = _bits_of(mods), mods["type"][0] == "s"

    def shift(x: int, n: int) -> int:
        return (x - (1 << size) if signed and x >> (size - 1) else x) >> min(n, size)

    return _words(shift, size, a, b, sizes=(size, 32))


def shf(mods: Mods, a: Array, b: Array, c: Array) -> Array:
    """Shift the 64 bits b:a; left gives the high word, right the low one (9.7.8.7)."""
    clamp, left = mods["mode"] == "clamp", mods["dir"] == "l"

    def funnel(low: int, high: int, n: int) -> int:
        n = min(n, 32) if clamp else n & 31
        both_words = high << 32 | low
        return both_words << n >> 32 if left else both_words >> n

    return _words(funnel, 32, a, b, c)


# -- bit fields -----------------------------------------------------------------------------------


def popc(mods: Mods, a: Array) -> Array:
    """Count ones."""
    return _words(int.bit_count, 32, a, sizes=(_bits_of(mods),))


def clz(mods: Mods, a: Array) -> Array:
    """Count leading zeros."""
    size = _bits_of(mods)
    return _words(lambda x: size - x.bit_length(), 32, a, sizes=(size,))


def bfind(mods: Mods, a: Array) -> Array:
    """Find the highest bit that is no sign; `.shiftamt`: how far it is from the top."""
    size, signed = _bits_of(mods), mods["type"][0] == "s"

    def find(x: int) -> int:
        if signed and x >> (size - 1):
            x ^= (1 << size) - 1
        if x == 0:
            return _ALL32
        place = x.bit_length() - 1
        return size - 1 - place if mods.get("shiftamt") else place

    return _words(find, 32, a, sizes=(size,))


def fns(mods: Mods, mask: Array, base: Array, offset: Array) -> Array:
    """Find the n-th one from a base, upwards or downwards (9.7.1.17)."""

    def find(word: int, start: int, n: int) -> int:
        n = n - (1 << 32) if n >> 31 else n
        if n == 0:
            return start if start < 32 and word >> start & 1 else _ALL32
        places = range(start, 32) if n > 0 else range(min(start, 31), -1, -1)
        ones = [p for p in places if word >> p & 1]
        return ones[abs(n) - 1] if len(ones) >= abs(n) else _ALL32

    return _words(find, 32, mask, base, offset)


def brev(mods: Mods, a: Array) -> Array:
    """Reverse the order of bits."""
    size = _bits_of(mods)
    return _words(lambda x: int(f"{x:0{size}b}"[::-1], 2), size, a)


def _byte(operand: int, size: int) -> int:
    """Return a place or length; beyond 255, which PTX does not allow, as an H200 does."""
    return operand & 0xFF if size == 32 else min(operand, 0xFF)


def bfe(mods: Mods, a: Array, b: Array, c: Array) -> Array:
    """Extract c bits from place b; signed types repeat the field's sign (9.7.1.19)."""
    size, signed = _bits_of(mods), mods["type"][0] == "s"

    def extract(x: int, place: int, count: int) -> int:
        place, count = _byte(place, size), _byte(count, size)
        if count == 0:
            return 0
        sign = x >> min(place + count - 1, size - 1) & 1 if signed else 0
        kept = min(count, max(size - place, 0))
        field = x >> place & ((1 << kept) - 1) if kept else 0
        return field | (-sign << kept)

    return _words(extract, size, a, b, c, sizes=(size, 32, 32))


def bfi(mods: Mods, a: Array, b: Array, c: Array, d: Array) -> Array:
    """Insert the d lowest bits of a into b at place c (9.7.1.20)."""
    size = _bits_of(mods)

    def insert(x: int, y: int, place: int, count: int) -> int:
        place, count = _byte(place, size), _byte(count, size)
        mask = ((1 << count) - 1) << place & ((1 << size) - 1)
        return y & ~mask | x << place & mask

    return _words(insert, size, a, b, c, d, sizes=(size, size, 32, 32))


def szext(mods: Mods, a: Array, b: Array) -> Array:
    """Extend the b lowest bits by zeros or their sign (9.7.1.21)."""
    signed = mods["type"] == "s32"

    def extend(x: int, count: int) -> int:
        if count >= 32 and mods["mode"] == "clamp":
            return x
        count &= 31
        field = x & ((1 << count) - 1)
        return field - (1 << count) if signed and count and field >> (count - 1) else field

    return _words(extend, 32, a, b)


def bmsk(mods: Mods, a: Array, b: Array) -> Array:
    """Return b ones from place a (9.7.1.22)."""

    def mask(place: int, count: int) -> int:
        if mods["mode"] == "clamp":
            return ((1 << min(count, 32)) - 1) << place if place < 32 else 0
        return ((1 << (count & 31)) - 1) << (place & 31)

    return _words(mask, 32, a, b)


_PLACES: dict[str, list[list[int]]] = {  # bytes of the result, lowest first, by the low bits of c
    "f4e": [[n, n + 1, n + 2, n + 3] for n in range(4)],
    "b4e": [[n, (n - 1) % 8, (n - 2) % 8, (n - 3) % 8] for n in range(4)],
    "rc8": [[n] * 4 for n in range(4)],
    "ecl": [[max(n, i) for i in range(4)] for n in range(4)],
    "ecr": [[min(n, i) for i in range(4)] for n in range(4)],
    "rc16": [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
}


def prmt(mods: Mods, a: Array, b: Array, c: Array) -> Array:
    """Choose four of the eight bytes b:a; a selector's top bit repeats the byte's sign."""

    def choose(low: int, high: int, selector: int) -> int:
        source = (high << 32 | low).to_bytes(8, "little")
        if mods.get("mode"):
            return int.from_bytes(
                [source[p] for p in _PLACES[mods["mode"]][selector & 3]], "little"
            )
        found = []
        for i in range(4):
            nibble = selector >> 4 * i & 0xF
            byte = source[nibble & 7]
            found.append((0xFF if byte >> 7 else 0) if nibble & 8 else byte)
        return int.from_bytes(found, "little")

    return _words(choose, 32, a, b, c)


# -- moves ----------------------------------------------------------------------------------------


def mov_pack(mods: Mods, *parts: Array) -> Array:
    """Put registers side by side, the first one lowest (9.7.9.4)."""
    return pack(list(parts), parts[0].dtype.itemsize * 8)


def mov_unpack(count: int) -> Callable[..., tuple[Array, ...]]:
    """Return a function that splits a register into `count` parts, the lowest first."""

    def split(mods: Mods, a: Array) -> tuple[Array, ...]:
        return tuple(unpack(a, a.dtype.itemsize * 8 // count, count))

    return split
