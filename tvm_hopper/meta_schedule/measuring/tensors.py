"""Tensors for measuring: random inputs, outputs filled with a marker."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvm_hopper.errors import HopperError
from tvm_hopper.facts.dtypes import DTYPES

PERIOD = (1 << 20) - 3  # values that are drawn; odd, so that rows of a tensor differ
SMALL_INTS = (-3, 4)  # of wider integers: sums of products of them stay in range
POISON = 0xFF  # every byte of an output: NaN in each floating-point type, -1 in the others


def numpy_type(dtype: str) -> np.dtype[Any]:
    """Return the type under which numpy holds elements of one of TVM's."""
    try:
        return DTYPES[dtype].numpy if dtype in DTYPES else np.dtype(dtype)
    except TypeError:
        raise HopperError(
            f"argument of type {dtype}: found no numpy type; need one of {', '.join(DTYPES)}"
        ) from None


def random_values(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Draw a tensor: normal for floating-point types, in range for integers, both for bool.

    - `shape`: extents, in elements.
    - `dtype`: one of TVM's types.
    - `seed`: the same seed gives the same values.
    - returns (array): beyond a million elements they repeat, with a period that divides no row.
    """
    kind, count = numpy_type(dtype), math.prod(shape)
    generator, drawn = np.random.default_rng(seed), min(count, PERIOD)
    if kind == np.bool_:
        values = generator.integers(0, 2, drawn).astype(kind)
    elif np.issubdtype(kind, np.integer):
        info = np.iinfo(kind)
        low, high = (info.min, info.max + 1) if kind.itemsize == 1 else SMALL_INTS
        values = generator.integers(max(low, info.min), high, drawn).astype(kind)
    else:
        values = generator.standard_normal(drawn, dtype=np.float32).astype(kind)
    return np.resize(values, shape)


def unwritten(sample: bytes, itemsize: int) -> int:
    """Count the elements of a sample of a poisoned output that still hold the poison."""
    elements = np.frombuffer(sample, np.uint8).reshape(-1, itemsize)
    return int((elements == POISON).all(axis=1).sum())
