"""Operands to try: what is special about a type in all combinations, and random ones."""

from __future__ import annotations

import numpy as np

from tvm_hopper.sim.arithmetic.formats import F64, FORMATS, encode, round_to

from .forms import IMMEDIATE, Form

COUNT = 2048
# Their operands but the first are places, lengths and selectors: mostly small numbers.
_BIT_FIELDS = ("bfe", "bfi", "szext", "bmsk", "shl", "shr", "shf", "fns", "prmt")


def _carrier(kind: str, dtype: str) -> np.dtype:
    return np.dtype(f"uint{8 * np.dtype(dtype).itemsize}")


def _special_floats(name: str) -> np.ndarray:
    form = FORMATS[name]
    one = 1.0 + 2.0 ** (1 - form.precision)
    least = 2.0**form.least
    step = 2.0 ** (form.least - form.precision + 1)
    values = [0.0, 1.0, one, 0.5, 1.5, 2.0, 3.0, 0.1, np.pi, 100.0, 2.0**form.most, form.largest]
    values += [least, step, least - step, 3 * step, 2.5, 126.5, 65504.0, 448.0, 464.0]
    values += [2.0**31, 2.0**32, 2.0**63, 2.0**126, 2.0**-126, 57344.0, 61440.0]
    kept = [v for v in values if abs(v) <= form.largest]
    if name not in ("f64",):
        kept = [float(np.float32(v)) for v in kept]
    kept = [*kept, *(-v for v in kept), np.inf, -np.inf, np.nan]
    rounded = np.array(kept) if form is F64 else round_to(np.array(kept), form, "rn")
    return encode(rounded, form)


def _special_integers(bits: int) -> np.ndarray:
    top = 1 << (bits - 1)
    values = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 127, 255, top - 1, top, top + 1, 2 * top - 1]
    return np.array([v % (2 * top) for v in values], f"uint{bits}")


def specials(kind: str, dtype: str) -> np.ndarray:
    """Return the special bits of an operand."""
    carrier = _carrier(kind, dtype)
    bits = 8 * carrier.itemsize
    name, _, lanes = kind.partition("x")
    if kind == "pred":
        return np.array([0, 1], carrier)
    if name in FORMATS:
        found = _special_floats(name).astype(carrier)
        if lanes:
            size = FORMATS[name].bits
            shifted = np.roll(found, 5)
            for lane in range(1, int(lanes)):
                found = found | shifted << carrier.type(size * lane)
        return found.astype(carrier)
    if kind[0] == "b" and bits in (32, 64):
        floats = _special_floats(f"f{bits}").astype(carrier)
        return np.concatenate([_special_integers(bits), floats[:8]])
    return _special_integers(bits)


def draw(form: Form, seed: int = 0) -> list[np.ndarray]:
    """Return the bits of each register operand, COUNT of them."""
    rng = np.random.default_rng(seed)
    inputs = form.inputs
    known = [specials(*typed) for typed in inputs]
    sizes = tuple(len(words) for words in known)
    combinations = int(np.prod(sizes))
    half = min(COUNT // 2, combinations)
    if combinations <= COUNT // 2:
        places = rng.permutation(combinations)
    else:
        places = rng.integers(0, combinations, half)
    grid = np.unravel_index(places, sizes)
    columns = []
    for position, typed in enumerate(inputs):
        column = np.empty(COUNT, _carrier(*typed))
        column[:half] = known[position][grid[position]]
        column[half:] = _random(rng, *typed, COUNT - half)
        if form.name in _BIT_FIELDS and position:
            small = rng.random(COUNT) < 0.6
            column[small] = rng.integers(0, 70, small.sum())
        columns.append(column)
    if form.name == "fns":
        columns[1] %= 32  # beyond, the result is undefined
    if form.name in ("div", "rem"):
        columns[1][columns[1] == 0] = 3  # of a division by zero nothing is defined
    return columns


def _random(rng: np.random.Generator, kind: str, dtype: str, count: int) -> np.ndarray:
    """Return random bits, half of them numbers of a common size where the type is a float."""
    carrier = _carrier(kind, dtype)
    if kind == "pred":
        return rng.integers(0, 2, count).astype(carrier)
    bits = rng.integers(0, 256, count * carrier.itemsize).astype(np.uint8).view(carrier)
    name, _, lanes = kind.partition("x")
    if name in FORMATS and FORMATS[name].bits > 8:
        form, half = FORMATS[name], count // 2
        parts = []
        for _ in range(int(lanes or 1)):
            values = rng.normal(size=half) * 2.0 ** rng.integers(-6, 7, half)
            values = values if form is F64 else round_to(values, form, "rn")
            parts.append(encode(values, form).astype(carrier))
        word = parts[0]
        for lane, part in enumerate(parts[1:], 1):
            word = word | part << carrier.type(form.bits * lane)
        bits[:half] = word
    return bits


def registers(form: Form, columns: list[np.ndarray]) -> list[np.ndarray]:
    """Return the operands as the simulator's registers hold them, the immediate included."""
    held = [
        column.view(dtype) if column.dtype.itemsize == np.dtype(dtype).itemsize else column
        for column, (_, dtype) in zip(columns, form.inputs, strict=True)
    ]
    places = iter(held)
    return [int(form.immediate) if kind == IMMEDIATE else next(places) for kind, _ in form.sources]
