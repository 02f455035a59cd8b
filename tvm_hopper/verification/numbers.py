"""Arguments for the two runs that are compared with a plain program.

Integers: small ones, so that every sum is exact in whatever order it is taken, where the types
allow it: |a| <= B with n B**2 <= 2**p for the longest sum, of n terms in a type of p significant
bits. If B < 1, fewer elements than all are other than zero.

Normal numbers: as they are in the middle of a network.

Each array repeats a random sequence whose length is a prime number: two elements at places that a
wrong stride or coordinate confuses are equal by chance alone, and large arrays cost no more than
a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.reference.evaluate import Reference
from tvm_hopper.reference.rounding import FORMATS
from tvm_hopper.sim.launch.signature import Argument
from tvm_hopper.sim.machine.pages import fill_repeating, no_bytes
from tvm_hopper.sim.tir import numpy_dtype

PERIOD = 1048583  # a prime
MOST_PLACES = 64  # different indices of one run, so that few rows of a table are needed
LARGEST = 8  # magnitude of integers: every float type holds them
SEEDS = {"integers": 20, "normal": 21}


@dataclass(frozen=True)
class Numbers:
    """Makes values of one kind.

    - `kind`: "integers" or "normal".
    - `largest`: magnitude of integers.
    - `density`: share of integers that are not zero by design.
    - `positions`: arguments that the program takes for places in other tensors, or decides by, and
      how many numbers from 0 are legal: those at the lower end, of normal numbers at the upper one.
    """

    kind: str
    largest: int = LARGEST
    density: float = 1.0
    positions: Mapping[str, int] = field(default_factory=dict)

    def fill(self, argument: Argument, array: np.ndarray) -> None:
        """Fill an argument's array."""
        seed = [SEEDS[self.kind], *argument.name.encode(), array.size % 1009]
        count = min(array.size, PERIOD)
        period = self._period(argument, count, np.random.default_rng(seed))
        if not array.flags.c_contiguous:
            array[...] = np.resize(period, array.shape)
            return
        fill_repeating(array.reshape(-1), period)

    def _period(self, argument: Argument, count: int, rng: np.random.Generator) -> np.ndarray:
        dtype = DTYPES[argument.dtype].numpy
        is_float = argument.dtype in FORMATS
        if dtype.kind == "b":
            return rng.integers(0, 2, count).astype(dtype)
        if argument.name in self.positions:
            most = int(np.iinfo(dtype).max) + 1 if dtype.kind in "iu" else 2
            legal = min(self.positions[argument.name], most)
            low = 0 if self.kind == "integers" else max(legal - MOST_PLACES, 0)
            return rng.integers(low, min(low + MOST_PLACES, legal), count).astype(dtype)
        if self.kind == "normal" and is_float:
            return rng.standard_normal(count).astype(dtype)
        if self.kind == "normal":
            info = np.iinfo(dtype)
            top = min(info.max, 1 << 7)
            return rng.integers(max(info.min, -top), top, count).astype(dtype)
        low = -self.largest if is_float or dtype.kind == "i" else 0
        values = rng.integers(low, self.largest + 1, count)
        if self.density < 1:
            values = np.where(rng.random(count) < self.density, values, 0)
        return values.astype(dtype)


def choose_numbers(
    reference: Reference, names: list[str], arguments: list[Any]
) -> tuple[Numbers, Numbers]:
    """Choose the integers by the longest sum of floats; return both kinds.

    `names` and `arguments` are the kernel's, in the order of the program's parameters.
    """
    largest, density = LARGEST, 1.0
    for precision, length in reference.sums(arguments):
        limit = 2.0**precision / max(length, 1)
        largest = min(largest, max(int(math.sqrt(limit)), 1))
        if limit < 1:  # on average half of the limit
            density = min(density, math.sqrt(limit / 2))
    legal = reference.legal_indices(arguments)
    positions = {names[place]: max(legal.get(place, 2), 1) for place in reference.positions}
    return (
        Numbers("integers", largest, density, positions),
        Numbers("normal", positions=positions),
    )


MAX_INPUT_BYTES = 64 << 30  # largest array, checked before it is made
POOL = 1_000_003  # numbers that are drawn; a prime, so that no row or tile is like another


def blank_memory(argument: Argument, size: int) -> np.ndarray:
    """Return zeroed memory that is allocated lazily.

    - raises ValueError: the array would be too large to be filled here.
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

    An argument in `legal` gets indices below that number. Large arrays repeat a pool of numbers.
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
