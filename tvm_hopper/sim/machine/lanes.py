"""Arithmetic of a warp, called by the code that `translate.py` generates.

A value is a scalar when it is the same in all 32 lanes by construction, else an array of 32; vector
types have a second axis.  A mask is None (all lanes) or 32 booleans; an empty mask is False, and
code under it does not run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_hopper.sim.machine.memory import global_number

LANES = np.arange(32)
# The largest finite value of the 8-bit floats that C code converts to.
_LARGEST = {"float8_e4m3fn": np.float32(448), "float8_e5m2": np.float32(57344)}
_INT_MASK = {"uint8": 0xFF, "uint16": 0xFFFF, "uint32": 0xFFFFFFFF, "uint64": (1 << 64) - 1}


def mand(mask: Any, cond: Any) -> Any:
    """Narrow a mask by a condition; False if no lane is left."""
    if not is_lanes(cond):
        return mask if cond else False
    if mask is None:
        if cond.all():
            return None
        return cond if cond.any() else False
    both = mask & cond
    return both if both.any() else False


def is_lanes(value: Any) -> bool:
    """Tell values of many lanes from one value for all of them.

    A value that may differ between lanes may be one constant: a side of an `if_then_else`.
    """
    return isinstance(value, np.ndarray) and value.ndim > 0


def as_lanes(value: Any) -> np.ndarray:
    """Spread a scalar over 32 lanes; an array stays."""
    if is_lanes(value):
        return value
    return np.full(32, value)


def first_lane(mask: Any) -> int:
    """Return the lowest active lane."""
    return 0 if mask is None else int(np.argmax(mask))


def one(value: Any, mask: Any) -> int:
    """Return the value of the lowest active lane as an int."""
    if is_lanes(value):
        return int(value[first_lane(mask)])
    return int(value)


class OutOfRegistersError(Exception):
    """A register array is indexed outside of its elements: a fault of the simulated program."""


class BudgetError(Exception):
    """The run would exceed its budget of time or memory; the text names which."""


def register(index: Any, count: int) -> Any:
    """Return a uniform register index, which must be one of `count`."""
    if not 0 <= index < count:
        raise OutOfRegistersError(f"register {int(index)} of {count}")
    return index


def to_shared(address: Any) -> Any:
    """Convert a generic address to one of shared memory; that of other memory stays as it is."""
    if is_lanes(address):
        return np.where(global_number(address) == 0, address & 0xFFFFFFFF, address)
    return address & 0xFFFFFFFF if not global_number(int(address)) else address


def wide(index: Any) -> Any:
    """Return an index as wide as an address; values read from memory may be narrower."""
    return index.astype(np.int64, copy=False) if isinstance(index, np.ndarray) else index


def tdiv(a: Any, b: Any) -> Any:
    """Divide integers, rounding towards zero."""
    if is_lanes(a) or is_lanes(b):
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


def lnot(cond: Any) -> Any:
    """Negate a condition."""
    return ~cond if is_lanes(cond) else not cond


def bitnot(value: Any, dtype: str) -> Any:
    """Invert the bits of an integer."""
    return ~value if is_lanes(value) else wrap(~int(value), dtype)


def cast(value: Any, dtype: np.dtype, name: str) -> Any:
    """Convert to a scalar type; integers wrap, floats truncate towards zero.

    8-bit floats saturate: `__nv_fp8_e4m3(x)` and its kin are `cvt.rn.satfinite` (PTX ISA, cvt).
    """
    if name.startswith("float8") and name in _LARGEST:
        limit = _LARGEST[name]
        value = np.clip(np.asarray(value, np.float32), -limit, limit)[()]
    if is_lanes(value):
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
    if is_lanes(value):
        return np.ascontiguousarray(value, dtype=source).view(dtype)
    return np.array([value], dtype=source).view(dtype)[0].item()


def find_first_set(value: Any) -> Any:
    """Return the place of the lowest one, counted from 1; 0 if there is none (`__ffs`)."""
    if is_lanes(value):
        return np.array([find_first_set(int(v)) for v in value], np.int32)
    word = int(value) & 0xFFFFFFFF
    return (word & -word).bit_length()


def select(cond: Any, yes: Any, no: Any) -> Any:
    """Choose per lane; both sides were evaluated."""
    if is_lanes(cond):
        for side in (yes, no):
            if is_lanes(side) and side.ndim > cond.ndim:
                cond = cond[:, None]
                break
        return np.where(cond, yes, no)
    return yes if cond else no


def ite(cond: Any, mask: Any, yes: Callable[[Any], Any], no: Callable[[Any], Any]) -> Any:
    """Choose per lane, evaluating each side only in the lanes that take it."""
    if not is_lanes(cond):
        return yes(mask) if cond else no(mask)
    mask_yes, mask_no = mand(mask, cond), mand(mask, ~cond)
    if mask_no is False:
        return yes(mask_yes)
    if mask_yes is False:
        return no(mask_no)
    return select(cond, yes(mask_yes), no(mask_no))


def logical_and(a: Any, mask: Any, b: Callable[[Any], Any]) -> Any:
    """Evaluate `b` only where `a` holds."""
    if not is_lanes(a):
        return b(mask) if a else False
    inner = mand(mask, a)
    return np.zeros(32, bool) if inner is False else a & b(inner)


def logical_or(a: Any, mask: Any, b: Callable[[Any], Any]) -> Any:
    """Evaluate `b` only where `a` does not hold."""
    if not is_lanes(a):
        return True if a else b(mask)
    inner = mand(mask, ~a)
    return a if inner is False else a | b(inner)


def ramp(base: Any, stride: Any, lanes: int) -> np.ndarray:
    """Return base + stride * [0, lanes), shape (32 or 1, lanes)."""
    steps = np.arange(lanes)
    if is_lanes(base) or is_lanes(stride):
        return np.reshape(base, (-1, 1)) + np.reshape(stride, (-1, 1)) * steps
    return (base + stride * steps)[None, :]


def broadcast(value: Any, lanes: int) -> np.ndarray:
    """Repeat a scalar along a new vector axis, shape (32 or 1, lanes)."""
    return np.repeat(np.reshape(np.asarray(value), (-1, 1)), lanes, axis=1)


def gather(load: Callable[[Any], Any], index: np.ndarray) -> np.ndarray:
    """Load the elements of a vector from places of their own; `index` has shape (32 or 1, n)."""
    parts = [load(column) for column in columns(index)]
    return np.stack([np.broadcast_to(part, LANES.shape) for part in parts], axis=1)


def scatter(store: Callable[[Any, Any], None], index: np.ndarray, value: Any) -> None:
    """Store the elements of a vector to places of their own, the first one first."""
    values = columns(value) if np.ndim(value) == 2 else [value] * index.shape[1]
    for column, part in zip(columns(index), values, strict=True):
        store(column, part)


def columns(vector: np.ndarray) -> list[Any]:
    """Split a vector value into its elements, each a scalar or an array of 32."""
    return [x if x.size > 1 else x[0] for x in vector.T]


def ldl(local: np.ndarray, index: Any, mask: Any) -> np.ndarray:
    """Load from registers by a per-lane index."""
    if not is_lanes(index):
        return local[:, register(index, local.shape[1])]
    if mask is not None:
        index = np.where(mask if index.ndim == 1 else mask[:, None], index, 0)
    _in_registers(local, index)
    return local[LANES, index] if index.ndim == 1 else local[LANES[:, None], index]


def kept(value: Any) -> Any:
    """Return a value that stays as it is when the registers that it was loaded from change."""
    return value.copy() if isinstance(value, np.ndarray) else value


def stl(local: np.ndarray, index: Any, value: Any, mask: Any) -> None:
    """Store to registers by a uniform index, a slice, or a per-lane index."""
    if is_lanes(index):
        lanes = LANES if index.ndim == 1 else LANES[:, None]
        _in_registers(local, index if mask is None or len(index) != 32 else index[mask])
        if mask is None:
            local[lanes, index] = value
            return
        value = np.broadcast_to(value, np.broadcast_shapes(np.shape(value), index.shape))
        index = np.broadcast_to(index, (32, *index.shape[1:]))
        local[lanes[mask], index[mask]] = np.broadcast_to(value, index.shape)[mask]
        return
    if isinstance(index, slice):
        register(index.start, local.shape[1])
        register(index.stop - 1, local.shape[1])
    else:
        register(index, local.shape[1])
    if mask is None:
        local[:, index] = value
    else:
        target = local[:, index]
        target[mask] = value[mask] if is_lanes(value) and len(value) == 32 else value


def _in_registers(local: np.ndarray, index: np.ndarray) -> None:
    if index.size and (index.min() < 0 or index.max() >= local.shape[1]):
        worst = index.min() if index.min() < 0 else index.max()
        raise OutOfRegistersError(f"register {int(worst)} of {local.shape[1]}")


def fdiv(a: Any, b: Any) -> Any:
    """Divide floats; a division by zero gives an infinity or NaN, as on the device."""
    with np.errstate(all="ignore"):
        return np.divide(a, b)
