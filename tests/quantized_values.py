"""Formats of weights of a few bits, arguments of `grouped_weight`, and what it has to compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.facts.dtypes import DTYPES

WHOLE = 1 << 20
AWQ = {"is_kn": True, "along": "n", "zeros": "packed", "order": "awq"}
FORMATS: dict[str, dict[str, Any]] = {
    "q4f16_1": {},
    "q4f16_0": {"is_kn": True},
    "q4bf16": {"dtype": "bfloat16"},
    "q8f16": {"bits": 8},
    "q8bf16": {"bits": 8, "dtype": "bfloat16", "group": 128},
    "gptq": {"is_kn": True, "zeros": "packed", "group": 128},
    "gptq of 8 bits": {"is_kn": True, "zeros": "packed", "group": 64, "bits": 8},
    "gptq of whole rows": {"is_kn": True, "zeros": "packed", "group": WHOLE},
    "awq": {**AWQ, "group": 128},
    "awq in bfloat16": {**AWQ, "group": 64, "dtype": "bfloat16"},
    "bytes of two": {"stored": "uint8", "zeros": "values", "group": 64},
    "two bits": {"bits": 2, "group": 16},
    "q3f16": {"bits": 3, "group": 40},
    "fp8 of rows": {"stored": "float8_e5m2", "group": WHOLE},
    "fp8 of blocks": {"stored": "float8_e4m3fn", "group": 128, "rows_of_group": 128},
    "fp8 of blocks in bfloat16": {
        **{"stored": "float8_e4m3fn", "group": 128, "rows_of_group": 128},
        "dtype": "bfloat16",
    },
}
LARGEST = 448  # of float8_e4m3fn


def draw(m: int, n: int, k: int, rng: Any, **form: Any) -> tuple[dict[str, Any], Any, Any]:
    """Draw arguments, with every field, and scales that are zero, denormal and huge.

    Returns them, the product in float64, and what it may be off by: the output rounded once, and
    sums in float32.
    """
    group, bits, order = form.get("group", 32), form.get("bits", 4), form.get("order", "plain")
    stored, dtype = form.get("stored", "uint32"), DTYPES[form.get("dtype", "float16")].numpy
    is_kn, zeros, along = form.get("is_kn"), form.get("zeros", ""), form.get("along", "k")
    is_float = stored.startswith("float8")
    per_word = 1 if is_float else 8 * np.dtype(stored).itemsize // bits
    groups, rows = -(-k // group), form.get("rows_of_group", 1)

    def words(*shape: int) -> Any:
        size = DTYPES[stored].num_bytes
        drawn = rng.integers(0, 256, (*shape, size), np.uint8)
        if is_float:
            limited = np.clip(rng.standard_normal(shape) * 64, -LARGEST, LARGEST)
            return limited.astype(DTYPES[stored].numpy)
        return drawn.view(stored)[..., 0]

    packed = words(*((n, -(-k // per_word)) if along == "k" else (-(-n // per_word), k)))
    scale = 2.0 ** rng.integers(-4, 0, (-(-n // rows), groups))
    huge = 2.0**60 if dtype.name == "bfloat16" else 8.0  # sums of float16 end at 65504
    scale *= rng.choice([0.0, 2.0**-20, 1.0, 1.0, huge], scale.shape)
    scale = scale.astype(dtype)
    given = {"X": rng.integers(-2, 3, (m, k)).astype(dtype), "W": packed, "S": scale}
    if is_float:
        value = packed.astype("float64")
    else:
        axis = 1 if along == "k" else 0
        value = _unpacked(packed, bits, axis, order)[:n, :k]
    zero: Any = 0 if is_float else (1 << (bits - 1)) - 1
    if zeros:
        packs = zeros == "packed"
        given["Z"] = words(-(-n // per_word), groups) if packs else None
        if not packs:
            given["Z"] = rng.integers(0, 1 << bits, (n, groups)).astype(dtype)
        zero = _unpacked(given["Z"], bits, 0, order)[:n] if packs else given["Z"].astype(float)
        zero = zero.repeat(group if group < k else k, 1)[:, :k]
    spread = scale.repeat(rows, 0)[:n].repeat(group if group < k else k, 1)[:, :k]
    weight = ((value - zero).astype(dtype) * spread).astype("float64")
    wide = given["X"].astype("float64")
    want, size = wide @ weight.T, np.abs(wide) @ np.abs(weight).T
    bits_kept = 8 if dtype.name == "bfloat16" else 11
    bound = np.abs(want) * 2.0**-bits_kept + size * 2.0**-20 + 2.0**-25
    if is_kn:
        given = {name: x if name == "X" else np.ascontiguousarray(x.T) for name, x in given.items()}
    return given, want, bound


def _unpacked(words: Any, bits: int, axis: int, order: str) -> Any:
    """Return the elements of a packed tensor, neighbours along an axis in a word."""
    last = np.moveaxis(words, axis, -1)[..., None]
    count = 8 * words.itemsize // bits
    place = np.arange(count)
    if order == "awq":
        place = place // 2 + place % 2 * (count // 2)
    found = last >> (place * bits).astype(words.dtype) & words.dtype.type((1 << bits) - 1)
    return np.moveaxis(found.reshape(*found.shape[:-2], -1), -1, axis).astype("float64")
