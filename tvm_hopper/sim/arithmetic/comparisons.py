"""Comparisons and selections (PTX ISA, 9.7.6 set, setp, selp, slct; 9.7.7 for the half types)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.arithmetic.floats import format_of
from tvm_hopper.sim.arithmetic.formats import F32, FORMATS, Array, decode, encode, flush
from tvm_hopper.sim.arithmetic.integers import Mods, pack, unpack, width

_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def _ordered(name: str, a: Any, b: Any) -> Array:
    found: dict[str, Array] = {
        "eq": a == b,
        "ne": a != b,
        "lt": a < b,
        "le": a <= b,
        "gt": a > b,
        "ge": a >= b,
    }
    return found[name]


def _compare_floats(name: str, a: Array, b: Array) -> Array:
    nan: Array = np.isnan(a) | np.isnan(b)
    if name == "num":
        return ~nan
    if name == "nan":
        return nan
    if name in ("equ", "neu", "ltu", "leu", "gtu", "geu"):
        return _ordered(name[:-1], a, b) | nan
    return _ordered(name, a, b) & ~nan


def holds(mods: Mods, kind: str, a: Array, b: Array) -> list[Array]:
    """Return whether a comparison holds, for each element of a register of a type."""
    name = _UNSIGNED.get(mods["cmp"], mods["cmp"])
    if kind.partition("x")[0] not in FORMATS:
        sign = "int" if kind[0] == "s" else "uint"
        view = f"{sign}{width(kind)}"
        return [
            _ordered(name, np.ascontiguousarray(a).view(view), np.ascontiguousarray(b).view(view))
        ]
    form, count = format_of(kind)
    found = []
    for x, y in zip(
        *([o] if count == 1 else unpack(o, form.bits, count) for o in (a, b)), strict=True
    ):
        left, right = decode(x, form), decode(y, form)
        if mods.get("ftz"):
            left, right = flush(left, form), flush(right, form)
        found.append(_compare_floats(name, left, right))
    return found


def _combined(mods: Mods, found: Array, c: Array | None) -> Array:
    if c is None:
        return found
    operator = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[mods["boolop"]]
    combined: Array = operator(found, c)
    return combined


def set_register(mods: Mods, a: Array, b: Array, c: Array | None = None) -> Array:
    """Return ones in every bit, or 1.0, where a comparison holds, else zeros (9.7.6.1)."""
    out = mods["dtype"]
    found = [_combined(mods, t, c) for t in holds(mods, mods["stype"], a, b)]
    if out.partition("x")[0] in FORMATS:
        form, _ = format_of(out)
        parts = [encode(np.where(t, 1.0, 0.0), form) for t in found]
        return parts[0] if len(parts) == 1 else pack(parts, form.bits)
    size = width(out) // len(found)
    kind = np.dtype(f"uint{size}")
    parts = [np.where(t, kind.type((1 << size) - 1), kind.type(0)) for t in found]
    return parts[0] if len(parts) == 1 else pack(parts, size)


def setp(mods: Mods, a: Array, b: Array, c: Array | None = None) -> Array:
    """Return a predicate (9.7.6.2)."""
    return _combined(mods, holds(mods, mods["type"], a, b)[0], c)


def setp_pair(mods: Mods, a: Array, b: Array, c: Array | None = None) -> tuple[Array, Array]:
    """Return p and q: of the comparison and of its opposite; of packed types, one an element."""
    found = holds(mods, mods["type"], a, b)
    first, second = found if len(found) == 2 else (found[0], ~found[0])
    return _combined(mods, first, c), _combined(mods, second, c)


def selp(mods: Mods, a: Array, b: Array, c: Array) -> Array:
    """Return a where the predicate holds, else b."""
    return np.where(c, a, b)


def slct(mods: Mods, a: Array, b: Array, c: Array) -> Array:
    """Return a where c is not negative, else b; NaN chooses b (9.7.6.4)."""
    if mods["ctype"] == "s32":
        return np.where(c.view(np.int32) >= 0, a, b)
    sign = decode(c, F32)
    return np.where((flush(sign, F32) if mods.get("ftz") else sign) >= 0, a, b)
