"""The shape of a product, as the cost model needs it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_hopper.facts.dtypes import dtype_bytes

from .axes import LARGE
from .boxes_of_images import count_boxes


@dataclass(frozen=True)
class ProductShape:
    """The product C[m, n] = A B to estimate, and the majors of its operands."""

    m: int
    n: int
    k: int
    dtype: str = "float16"
    # "k" or "mn" for each operand: along which its rows are contiguous
    majors: tuple[str, str] = ("k", "k")
    output_bytes: int = 2  # of an element of C
    # whether m runs along the rows of C in memory: elements are then stored one by one
    is_transposed: bool = False
    is_symbolic: bool = False  # whether an extent is a guess
    batch: int = 1  # how many such products a kernel computes
    # bytes in memory of an element on the tile's rows that consumers convert; 0: none is converted
    converted_bytes: float = 0
    # axes of images whose pixels are the rows of C, the elements that windows move by, and the
    # channels that k walks through for each element of a window; empty and 0: no windows
    images: tuple[int, ...] = ()
    image_steps: tuple[int, ...] = ()
    channels: int = 0

    @property
    def row_bytes(self) -> tuple[int, int]:
        """Bytes from one row of A in memory to the next, and of B."""
        left = self.channels or self.k if self.majors[0] == "k" else self.m
        right = self.k if self.majors[1] == "k" else self.n
        return left * dtype_bytes(self.dtype), right * dtype_bytes(self.dtype)

    def tiles_down(self, rows: Any) -> Any:
        """Return how many tiles of so many rows there are, ints or arrays."""
        if not self.images:
            return -(-np.asarray(self.m) // rows)
        counts = {
            x: count_boxes(self.images, self.image_steps, x) for x in np.unique(rows).tolist()
        }
        return np.vectorize(lambda x: counts[x] or LARGE, otypes=[float])(rows)

    def steps_deep(self, depth: Any) -> Any:
        """Return how many steps of a depth a sum takes, ints or arrays."""
        if not self.channels:
            return -(-self.k // depth)
        return self.k // self.channels * -(-self.channels // depth)

    @property
    def left_in_memory(self) -> int:
        """Elements in memory of A for a row of C: windows of several rows overlap."""
        return min(self.channels * math.prod(self.image_steps), self.k) if self.images else self.k

    @property
    def transposed(self) -> ProductShape:
        """The same product as C^T = B^T A^T."""
        other = not self.is_transposed
        return replace(self, m=self.n, n=self.m, majors=self.majors[::-1], is_transposed=other)
