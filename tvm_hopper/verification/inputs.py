"""Numbers for the arguments that a caller of `verify` leaves out, made when a run needs them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from tvm_hopper.sim.launch.signature import Argument
from tvm_hopper.sim.machine.pages import fill_repeating, no_bytes
from tvm_hopper.sim.tir import numpy_dtype

MAX_INPUT_BYTES = 64 << 30  # of one array, before it is made
POOL = 1_000_003  # numbers that are drawn; a prime, so that no row or tile is like another


def blank_memory(argument: Argument, size: int) -> np.ndarray:
    """Return zeroed memory that is allocated lazily.

    Raises
    ------
    ValueError
        The array would be too large to be filled here.
    """
    if size > MAX_INPUT_BYTES:
        raise ValueError(
            f"inputs: found {argument.name} of {size >> 30} GiB; need it from the caller above "
            f"{MAX_INPUT_BYTES >> 30} GiB"
        )
    return no_bytes(size)


def fill_random(
    values: Mapping[str, np.ndarray],
    arguments: Iterable[Argument],
    names: Iterable[str],
    legal: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Fill arrays of some names with random numbers: integers 0 and 1, floats of a unit normal.

    Of an argument in `legal`, only so many integers from 0 are an index. Large arrays repeat a pool
    of numbers from end to end.
    """
    wanted = set(names)
    for argument in arguments:
        if argument.name in wanted:
            _fill(values[argument.name], argument, min(legal.get(argument.name, 2), 2))


def _fill(array: np.ndarray, argument: Argument, integers: int) -> None:
    rng = np.random.default_rng(len(argument.name) + math.prod(array.shape) % 1009)
    dtype, count = numpy_dtype(argument.dtype), min(array.size, POOL)
    if dtype.kind in "iub":
        pool = rng.integers(0, max(integers, 1), count).astype(dtype)
    else:
        pool = rng.standard_normal(count, dtype=np.float32).astype(dtype)
    if array.size == count:
        array[...] = pool.reshape(array.shape)
    elif array.flags.c_contiguous:
        fill_repeating(array.reshape(-1), pool)
    else:
        array[...] = np.resize(pool, array.shape)
