"""Math functions of device code by the names that TVM's CUDA code generator prints.

    float32: tanhf(x), __expf(x)     float64: tanh(x)     half, bfloat16: htanh(x), __habs(x)

A function of a 16-bit float is computed in float32 and rounded once, as `cuda_fp16.h`,
`cuda_bf16.h` and TVM's own preamble of the kernel do.  A function that none of them defines
(`hsinh`, which TVM prints and no compiler accepts) has no entry, so the simulator reports it.
"""

from __future__ import annotations

import math as _python_math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tvm_hopper.sim.tir import numpy_dtype

Function = Callable[..., Any]

_IN_HEADERS = (
    *("ceil", "cos", "exp", "exp2", "exp10", "floor", "log", "log2", "log10"),
    *("rcp", "rsqrt", "sin", "sqrt", "tanh", "trunc"),
)
_IN_PREAMBLE = ("atan", "erf", "pow", "tan")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
HALF = {
    **{f"h{name}": name for name in (*_IN_HEADERS, *_IN_PREAMBLE)},
    **{"hrint": "round", "__habs": "fabs", "__hfma": "fma"},
}


def plain_name(extern: str) -> str | None:
    """Return the function that a C name calls, a key of `MATH`; None if nothing models it."""
    if extern in HALF:
        return HALF[extern]
    name = extern.removeprefix("__").removeprefix("tirx.").removesuffix("_rn")
    for candidate in (name.removesuffix("f"), name):
        if candidate in MATH:
            return candidate
    return None


def math(name: str, dtype: np.dtype, *args: Any) -> Any:
    """Apply a function to values of a type, one or 32 of them; the result is rounded once."""
    function = MATH[name]
    if dtype.kind in "iub":
        return function(*[np.asarray(arg, dtype) for arg in args])[()]
    wide = np.float64 if dtype == np.float64 or name == "fma" else np.float32
    # An argument is rounded to its own type first: a constant arrives as Python's float.
    exact = [np.asarray(arg).astype(dtype).astype(wide) for arg in args]
    with np.errstate(all="ignore"):
        result = np.asarray(function(*exact))
        return (result if result.dtype == bool else result.astype(dtype))[()]


def _erf(x: Any) -> Any:
    return np.vectorize(_python_math.erf, otypes=[x.dtype])(x)


def _leading_zeros(x: Any) -> Any:
    bits = 8 * x.dtype.itemsize
    return (bits - np.vectorize(int.bit_length, otypes=[np.int64])(x.astype(object))).astype(
        "int32"
    )


def _ones(x: Any) -> Any:
    return np.vectorize(int.bit_count, otypes=[np.uint32])(x.astype(object))


def _unsigned(x: Any) -> Any:
    return x.view(f"uint{8 * x.dtype.itemsize}")


def _flushed(function: Function) -> Function:
    """Take subnormal numbers for zero, arguments and results, as `.ftz` does."""

    def zeroed(x: Any) -> Any:
        return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)

    return lambda x: zeroed(np.asarray(function(zeroed(x))).astype(x.dtype))


def _exactly(function: Function) -> Function:
    """Compute in float64, the function that the text of an operator approximates."""
    return lambda x: np.asarray(function(x.astype(np.float64))).astype(x.dtype)


def _fused(a: Any, b: Any, c: Any) -> Any:
    """Multiply and add, rounded once."""
    return (a.astype(np.float64) * b + c).astype(a.dtype)


def _divide(x: Any, divisor: Any, inverse: Any) -> Any:
    """Divide by multiplying with the inverse, and add what the remainder gives."""
    product = x * inverse
    nearer = _fused(_fused(-product, divisor, x), inverse, product)
    return np.where(np.isnan(nearer), product, nearer)


def _tanh_gelu(half: Any) -> Any:
    u = 2 * 0.7978845608028654 * (2 * half + 0.044715 * (2 * half) ** 3)
    step = np.where(u < 0, np.exp(np.minimum(u, 0)), 1) / (1 + np.exp(-np.abs(u)))
    return 2 * half * step


def _gelu(half: Any) -> Any:
    return half * np.vectorize(_python_math.erfc, otypes=[half.dtype])(-(2.0**0.5) * half)


def _widened(source: str, dtype: str) -> Function:
    """Return the function of a word of two bytes that gives a word of two floats."""

    def widen(word: Any, half: Any, zero: Any) -> Any:
        both = word >> (half * np.uint32(16))
        pair = np.stack([both & 0xFF, both >> 8 & 0xFF]).astype(np.uint8).view(numpy_dtype(source))
        if source.startswith("float"):
            return _halves_of(pair.astype(numpy_dtype(dtype)))
        return _joined(pair.astype(np.float64) - zero, dtype)

    return widen


def _halves(word: Any, dtype: str) -> Any:
    """Return the two halves of words, the lower one first."""
    pair = np.stack([word & 0xFFFF, word >> 16]).astype(np.uint16)
    return pair.view(numpy_dtype(dtype)).astype(np.float32)


def _joined(pair: Any, dtype: str) -> Any:
    """Return two numbers as the halves of a word, each rounded once."""
    return _halves_of(np.asarray(pair).astype(numpy_dtype(dtype)))


def _halves_of(pair: Any) -> Any:
    low, high = pair.view(np.uint16).astype(np.uint32)
    return low | high << np.uint32(16)


def _of_halves(function: Function, dtype: str) -> Function:
    """Return a function of words, which computes both halves in float32: exact, then rounded."""
    return lambda x, y: _joined(function(_halves(x, dtype), _halves(y, dtype)), dtype)


def _without_zero(low: Any, high: Any, zero: Any, dtype: str) -> Any:
    """Return two integers as halves, minus a third one."""
    return _joined(np.stack([low, high]).astype(np.float64) - zero, dtype)


def _nibbles(word: Any, byte: Any, zero: Any, dtype: str) -> Any:
    first = word >> (8 * byte)
    return _without_zero(first & 15, first >> 4 & 15, zero, dtype)


def _nibbles_apart(word: Any, shift: Any, zero: Any, dtype: str) -> Any:
    first = word >> shift
    return _without_zero(first & 15, first >> 16 & 15, zero, dtype)


MATH: dict[str, Function] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "clz": lambda x: _leading_zeros(_unsigned(x)),
    "clzll": lambda x: _leading_zeros(_unsigned(x)),
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": _erf,
    "exp": np.exp,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "exp2": np.exp2,
    "fabs": np.abs,
    "fdivide": np.divide,
    "floor": np.floor,
    "fma": lambda a, b, c: a * b + c,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "ldexp": lambda x, exponent: np.ldexp(x, exponent.astype(np.int32)),
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "nearbyint": np.rint,
    "nextafter": np.nextafter,
    "popc": lambda x: _ones(_unsigned(x)),
    "popcll": lambda x: _ones(_unsigned(x)),
    "pow": np.power,
    "rcp": np.reciprocal,
    "round": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
    "tvm_hopper_ex2_ftz": _flushed(np.exp2),
    "tvm_hopper_rcp_ftz": _flushed(np.reciprocal),
    "tvm_hopper_rcp_approx": np.reciprocal,
    "tvm_hopper_rcp_in_turns": lambda x, _turn: _flushed(np.reciprocal)(x),
    "tvm_hopper_divide_by": _divide,
    "tvm_hopper_tanh_approx": np.tanh,
    "tvm_hopper_gelu_tanh_float16": _exactly(_tanh_gelu),
    "tvm_hopper_gelu_tanh_bfloat16": _exactly(_tanh_gelu),
    "tvm_hopper_gelu_erf": _exactly(_gelu),
    **{f"tvm_hopper_add_rn_{dtype}": np.add for dtype in _FLOATS},
    **{f"tvm_hopper_sub_rn_{dtype}": np.subtract for dtype in _FLOATS},
    **{f"tvm_hopper_fma_rn_{dtype}": _fused for dtype in _FLOATS},
    "tvm_hopper_upper_half": lambda x: x & np.uint32(0xFFFF0000),
    **{
        f"tvm_hopper_widen_bytes_{source}_{dtype}": _widened(source, dtype)
        for source in ("int8", "uint8", "float8_e4m3fn", "float8_e5m2")
        for dtype in ("float16", "bfloat16")
    },
    "tvm_hopper_both_halves": lambda half: half | half << np.uint32(16),
}
for _dtype, _ptx in (("float16", "f16x2"), ("bfloat16", "bf16x2")):
    MATH[f"tvm_hopper_nibbles_{_dtype}"] = partial(_nibbles, dtype=_dtype)
    MATH[f"tvm_hopper_nibbles_apart_{_dtype}"] = partial(_nibbles_apart, dtype=_dtype)
    MATH[f"tvm_hopper_small_{_dtype}"] = partial(_without_zero, dtype=_dtype)
    for _op, _function in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply)):
        MATH[f"tvm_hopper_{_op}_{_ptx}"] = _of_halves(_function, _dtype)
