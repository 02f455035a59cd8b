"""Numbers for the arguments that a caller of `verify` leaves out."""

from __future__ import annotations

import math

import numpy as np

from tvm_hopper.sim.launch.signature import Argument
from tvm_hopper.sim.tir import numpy_dtype

MAX_INPUT_BYTES = 64 << 30  # of one array, before it is made


def random_values(argument: Argument, shape: tuple[int, ...]) -> np.ndarray:
    """Return random numbers of an argument's type: integers 0 and 1, floats of a unit normal.

    Raises
    ------
    ValueError
        The array would be too large to be made here.
    """
    if math.prod(shape) * 8 > MAX_INPUT_BYTES:
        raise ValueError(
            f"inputs: found {argument.name} of shape {shape}; need it from the caller above "
            f"{MAX_INPUT_BYTES >> 30} GiB"
        )
    rng = np.random.default_rng(len(argument.name) + math.prod(shape) % 1009)
    dtype = numpy_dtype(argument.dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)
