"""The floating-point formats of PTX: bits to numbers, numbers to bits, and rounding between.

Numbers of every format but `f64` are handled as float64, which holds each of them exactly
(PTX ISA, 5.2.1 fundamental types, 5.2.3 alternate floating-point formats).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Format:
    """A binary format.

    - `name`: as PTX spells it.
    - `bits`: of the register part that holds it.
    - `precision`: significant bits, the hidden one included.
    - `least`, `most`: exponents of the least and of the largest normal numbers.
    - `nan`: the NaN that instructions produce (`cvt` gives 0x7f in both 8-bit formats).
    """

    name: str
    bits: int
    precision: int
    least: int
    most: int
    largest: float
    nan: int
    infinite: bool = True

    @property
    def carrier(self) -> np.dtype:
        """The unsigned type of the bits."""
        return np.dtype(f"uint{self.bits}")


def _largest(precision: int, most: int) -> float:
    return (2.0 - 2.0 ** (1 - precision)) * 2.0**most


F64 = Format("f64", 64, 53, -1022, 1023, float(np.finfo(np.float64).max), 0x7FF8 << 48)
F32 = Format("f32", 32, 24, -126, 127, _largest(24, 127), 0x7FFFFFFF)
F16 = Format("f16", 16, 11, -14, 15, _largest(11, 15), 0x7FFF)
BF16 = Format("bf16", 16, 8, -126, 127, _largest(8, 127), 0x7FFF)
TF32 = Format("tf32", 32, 11, -126, 127, _largest(11, 127), 0x7FFFFFFF)
E4M3 = Format("e4m3", 8, 4, -6, 8, 448.0, 0x7F, infinite=False)
E5M2 = Format("e5m2", 8, 3, -14, 15, 57344.0, 0x7F)
FORMATS = {f.name: f for f in (F64, F32, F16, BF16, TF32, E4M3, E5M2)}


@functools.cache
def _values_of_bytes(name: str) -> Array:
    """Return the number that each byte stands for in an 8-bit format."""
    form = FORMATS[name]
    code = np.arange(256)
    fraction_bits = form.precision - 1
    field, fraction = (code & 0x7F) >> fraction_bits, code & ((1 << fraction_bits) - 1)
    hidden = (field > 0) * float(1 << fraction_bits)
    exponent = np.maximum(field - 1, 0) + form.least - fraction_bits
    values = np.ldexp(hidden + fraction, exponent)
    if form.infinite:
        top = field == field.max()
        values = np.where(top, np.where(fraction == 0, np.inf, np.nan), values)
    else:
        values = np.where((code & 0x7F) == 0x7F, np.nan, values)
    return np.where(code & 0x80, -values, values)


def decode(bits: Array, form: Format) -> Array:
    """Return the numbers that some bits stand for, as float64."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return _decode(bits, form)


def _decode(bits: Array, form: Format) -> Array:
    if form is F64:
        return np.ascontiguousarray(bits, np.uint64).view(np.float64)
    if form.bits == 8:
        return _values_of_bytes(form.name)[bits]
    if form is F16:
        return np.ascontiguousarray(bits, np.uint16).view(np.float16).astype(np.float64)
    words = np.ascontiguousarray(bits, np.uint32)
    if form is BF16:
        words = words << np.uint32(16)
    return words.view(np.float32).astype(np.float64)


def encode(values: Array, form: Format) -> Array:
    """Return the bits of numbers that the format holds; every NaN becomes the format's own."""
    nan = np.isnan(values)
    if form is F64:
        bits: Array = np.array(values, np.float64).view(np.uint64)
    elif form.bits == 8:
        magnitudes = _values_of_bytes(form.name)[:128]
        places = np.searchsorted(magnitudes[: np.argmax(np.isnan(magnitudes))], np.abs(values))
        bits = (places | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)
    elif form is F16:
        bits = np.array(values).astype(np.float16).view(np.uint16)
    else:
        bits = np.array(values).astype(np.float32).view(np.uint32)
        if form is BF16:
            bits = (bits >> np.uint32(16)).astype(np.uint16)
    return np.where(nan, form.carrier.type(form.nan), bits)


_ROUND = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}


def _away(scaled: Array) -> Array:
    """Round to the nearest integer, halves away from zero."""
    return np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)


def round_to(values: Array, form: Format, mode: str, finite: bool = False) -> Array:
    """Round float64 numbers to a narrower format.

    - `mode`: "rn", "rz", "rm", "rp", or "rna" (to nearest, halves away from zero).
    - `finite`: larger numbers become the largest finite number (`.satfinite`).
    """
    _, exponent = np.frexp(values)
    quantum = np.maximum(exponent - 1, form.least) - (form.precision - 1)
    scaled = np.ldexp(values, -quantum)
    number = _away(scaled) if mode == "rna" else _ROUND[mode](scaled)
    rounded = np.ldexp(number, quantum)
    beyond = np.abs(rounded) > form.largest
    limit = np.copysign(form.largest, values)
    if finite:
        return np.where(beyond, limit, rounded)
    stays = {"rz": beyond, "rm": beyond & (values > 0), "rp": beyond & (values < 0)}.get(mode)
    rounded = np.where(beyond, np.copysign(np.inf, values), rounded)
    if stays is not None:
        rounded = np.where(stays & np.isfinite(values), limit, rounded)
    return rounded


def flush(values: Array, form: Format) -> Array:
    """Replace subnormal numbers by zeros of their signs (`.ftz`)."""
    return np.where(np.abs(values) < 2.0**form.least, np.copysign(0.0, values), values)


def saturate(values: Array) -> Array:
    """Clamp to [0, 1]; NaN becomes +0 (`.sat`)."""
    return np.where(values > 0, np.minimum(values, 1.0), 0.0)


def clamp_negative(values: Array) -> Array:
    """Replace negative numbers by +0 (`.relu`); NaN stays."""
    return np.where((values > 0) | np.isnan(values), values, 0.0)
