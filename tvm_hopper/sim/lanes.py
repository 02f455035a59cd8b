"""Arithmetic of a warp: what the generated code of `translate.py` calls.

A value is a scalar when it is the same in all 32 lanes by construction, else an array of 32; vector
types have a second axis.  A mask is None (all lanes) or 32 booleans; an empty mask is False, and
code under it does not run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

LANES = np.arange(32)
_INT_MASK = {"uint8": 0xFF, "uint16": 0xFFFF, "uint32": 0xFFFFFFFF, "uint64": (1 << 64) - 1}


def mand(mask: Any, cond: Any) -> Any:
    """Narrow a mask by a condition; False if no lane is left."""
    if mask is None:
        if cond.all():
            return None
        return cond if cond.any() else False
    both = mask & cond
    return both if both.any() else False


def as_lanes(value: Any) -> np.ndarray:
    """Spread a scalar over 32 lanes; an array stays."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value
    return np.full(32, value)


def first_lane(mask: Any) -> int:
    """Return the lowest active lane."""
    return 0 if mask is None else int(np.argmax(mask))


def one(value: Any, mask: Any) -> int:
    """Return the value of the lowest active lane as an int."""
    if isinstance(value, np.ndarray) and value.ndim:
        return int(value[first_lane(mask)])
    return int(value)


def tdiv(a: Any, b: Any) -> Any:
    """Divide integers, rounding towards zero."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        quotient = np.abs(a) // np.abs(b)
        return np.where((np.asarray(a) < 0) != (np.asarray(b) < 0), -quotient, quotient)
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def tmod(a: Any, b: Any) -> Any:
    """Return the remainder of `tdiv`, with the sign of `a`."""
    return a - tdiv(a, b) * b


def wrap(value: int, dtype: str) -> int:
    """Reduce a Python int to an unsigned type's range."""
    return value & _INT_MASK[dtype] if dtype in _INT_MASK else value


def cast(value: Any, dtype: np.dtype, name: str) -> Any:
    """Convert to a scalar type; integers wrap, floats truncate towards zero."""
    if isinstance(value, np.ndarray) and value.ndim:
        with np.errstate(invalid="ignore", over="ignore"):
            return value.astype(dtype)
    if dtype.kind in "iu":
        return wrap(int(value), name) if dtype.kind == "u" else int(value)
    if dtype.kind == "b":
        return bool(value)
    with np.errstate(over="ignore"):
        return dtype.type(value)


def reinterpret(value: Any, source: np.dtype, dtype: np.dtype) -> Any:
    """Look at the same bits as another type of the same width."""
    if isinstance(value, np.ndarray) and value.ndim:
        return np.ascontiguousarray(value, dtype=source).view(dtype)
    return np.array([value], dtype=source).view(dtype)[0].item()


def select(cond: Any, yes: Any, no: Any) -> Any:
    """Choose per lane; both sides were evaluated."""
    if isinstance(cond, np.ndarray):
        for side in (yes, no):
            if isinstance(side, np.ndarray) and side.ndim > cond.ndim:
                cond = cond[:, None]
                break
        return np.where(cond, yes, no)
    return yes if cond else no


def ite(cond: Any, mask: Any, yes: Callable[[Any], Any], no: Callable[[Any], Any]) -> Any:
    """Choose per lane, evaluating each side only in the lanes that take it."""
    if not isinstance(cond, np.ndarray):
        return yes(mask) if cond else no(mask)
    mask_yes, mask_no = mand(mask, cond), mand(mask, ~cond)
    if mask_no is False:
        return yes(mask_yes)
    if mask_yes is False:
        return no(mask_no)
    return select(cond, yes(mask_yes), no(mask_no))


def logical_and(a: Any, mask: Any, b: Callable[[Any], Any]) -> Any:
    """Evaluate `b` only where `a` holds."""
    if not isinstance(a, np.ndarray):
        return b(mask) if a else False
    inner = mand(mask, a)
    return np.zeros(32, bool) if inner is False else a & b(inner)


def logical_or(a: Any, mask: Any, b: Callable[[Any], Any]) -> Any:
    """Evaluate `b` only where `a` does not hold."""
    if not isinstance(a, np.ndarray):
        return True if a else b(mask)
    inner = mand(mask, ~a)
    return a if inner is False else a | b(inner)


def ramp(base: Any, stride: Any, lanes: int) -> np.ndarray:
    """Return base + stride * [0, lanes), shape (32 or 1, lanes)."""
    steps = np.arange(lanes)
    if isinstance(base, np.ndarray) or isinstance(stride, np.ndarray):
        return np.reshape(base, (-1, 1)) + np.reshape(stride, (-1, 1)) * steps
    return (base + stride * steps)[None, :]


def broadcast(value: Any, lanes: int) -> np.ndarray:
    """Repeat a scalar along a new vector axis, shape (32 or 1, lanes)."""
    return np.repeat(np.reshape(np.asarray(value), (-1, 1)), lanes, axis=1)


def ldl(local: np.ndarray, index: Any, mask: Any) -> np.ndarray:
    """Load from registers by a per-lane index."""
    if mask is not None:
        index = np.where(mask if index.ndim == 1 else mask[:, None], index, 0)
    return local[LANES, index] if index.ndim == 1 else local[LANES[:, None], index]


def stl(local: np.ndarray, index: Any, value: Any, mask: Any) -> None:
    """Store to registers by a uniform index, a slice, or a per-lane index."""
    if isinstance(index, np.ndarray):
        lanes = LANES if index.ndim == 1 else LANES[:, None]
        if mask is None:
            local[lanes, index] = value
            return
        value = np.broadcast_to(value, np.broadcast_shapes(np.shape(value), index.shape))
        index = np.broadcast_to(index, (32, *index.shape[1:]))
        local[lanes[mask], index[mask]] = np.broadcast_to(value, index.shape)[mask]
    elif mask is None:
        local[:, index] = value
    else:
        target = local[:, index]
        target[mask] = value[mask] if isinstance(value, np.ndarray) and len(value) == 32 else value


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.asarray(x).dtype])(x)


def _keep(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute in float32 at least and return the input's type, as device code does."""

    def apply(*args: Any) -> Any:
        kind = next((a.dtype for a in args if hasattr(a, "dtype")), np.dtype(np.float32))
        wide = np.float64 if kind == np.float64 else np.float32
        with np.errstate(all="ignore"):
            return np.asarray(function(*[np.asarray(a, dtype=wide) for a in args])).astype(kind)

    return apply


MATH: dict[str, Callable[..., Any]] = {
    "exp": _keep(np.exp),
    "exp2": _keep(np.exp2),
    "exp10": _keep(lambda x: np.power(np.float32(10), x)),
    "log": _keep(np.log),
    "log2": _keep(np.log2),
    "log10": _keep(np.log10),
    "log1p": _keep(np.log1p),
    "sqrt": _keep(np.sqrt),
    "rsqrt": _keep(lambda x: 1 / np.sqrt(x)),
    "tanh": _keep(np.tanh),
    "sin": _keep(np.sin),
    "cos": _keep(np.cos),
    "tan": _keep(np.tan),
    "erf": _keep(_erf),
    "pow": _keep(np.power),
    "fabs": _keep(np.abs),
    "floor": _keep(np.floor),
    "ceil": _keep(np.ceil),
    "trunc": _keep(np.trunc),
    "round": _keep(np.rint),
    "nearbyint": _keep(np.rint),
    "sigmoid": _keep(lambda x: 1 / (1 + np.exp(-x))),
    "fma": _keep(lambda a, b, c: a * b + c),
    "fmax": _keep(np.fmax),
    "fmin": _keep(np.fmin),
    "fdividef": _keep(np.divide),
    "isnan": lambda x: np.isnan(np.asarray(x, dtype=np.float32)),
    "isinf": lambda x: np.isinf(np.asarray(x, dtype=np.float32)),
}


def fdiv(a: Any, b: Any) -> Any:
    """Divide floats; a division by zero gives an infinity or NaN, as on the device."""
    with np.errstate(all="ignore"):
        return np.divide(a, b)
