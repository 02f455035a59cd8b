"""Reductions of elements in memory: of atomics, asynchronous copies and stores.

PTX ISA 9.1, 9.7.13.5 atom, 9.7.9.25.4.2 cp.reduce.async.bulk and 9.7.13.8 red.async: `.inc` gives 0
from `b` on, `.dec` gives `b` at 0 and above `b`; sums wrap.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

OPERATIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "fmin": np.fmin,
    "fmax": np.fmax,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, bound: np.where(old >= bound, 0, old + old.dtype.type(1)),
    "dec": lambda old, bound: np.where((old == 0) | (old > bound), bound, old - old.dtype.type(1)),
}


def reduced(operation: str, old: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the contents of memory after a reduction of elements of one type."""
    with np.errstate(all="ignore"):
        return OPERATIONS[operation](old, values).astype(old.dtype)
