"""Tensor maps: which global elements a box covers, and where they land in shared memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.layouts.matrix_descriptor import swizzled
from tvm_hopper.sim.machine.memory import Region
from tvm_hopper.sim.tir import numpy_dtype

# Bytes of the innermost coordinate of a box. An H200 ends with an illegal instruction at others
# (docs/calibration.md); PTX does not state this.
START_ALIGNMENT = 16
SWIZZLE_BYTES = {0: 0, 1: 32, 2: 64, 3: 128}


@dataclass(frozen=True)
class TensorMapArg:
    """A tensor map as the host encoded it; `tensor` is the name of the argument it points into.

    `dims`, `box` and `element_strides` count elements, innermost first; `strides_bytes` has one
    entry less than `dims` (the innermost stride is the element).  `swizzle` and `oob` are the
    driver's codes: swizzle 0 none, 1 32 B, 2 64 B, 3 128 B; oob 0 zeros, 1 NaN.  With corners
    `lower` and `upper`, of the dimensions between the first and the last, the map is of im2col
    mode, and `box` holds channels of a pixel and pixels of a column.
    """

    tensor: str
    dtype: str
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    interleave: int = 0
    swizzle: int = 0
    l2: int = 0
    oob: int = 0
    byte_offset: int = 0
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the traversal strides.

        For a tiled map, "when interleave is CU_TENSOR_MAP_INTERLEAVE_NONE, the first element of
        this array is ignored since TMA doesn't support the stride for dimension zero" (CUDA driver
        API, cuTensorMapEncodeTiled).
        """
        found = self.element_strides or (1,) * len(self.box)
        return found if self.interleave or self.lower else (1, *found[1:])

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the elements that a copy brings: of a tiled map ceil(box / stride) each way."""
        if self.lower:  # channels, pixels
            return self.box
        return tuple(-(-b // s) for b, s in zip(self.box, self.steps, strict=True))


@functools.lru_cache(maxsize=256)
def landing_offsets(
    row: int, num_rows: int, itemsize: int, swizzle_bytes: int, phase: int
) -> np.ndarray:
    """Return where each element of a box lands, in elements from the destination.

    A row that is shorter than the span of the swizzle is followed by a gap: rows begin at multiples
    of the span, and the gaps are not written (docs/calibration.md; PTX shows only full rows).

    - `row`, `num_rows`: elements of the innermost dimension, and how many such rows the box has.
    - `phase`: the destination's offset in its 1024-byte swizzle atom, in bytes.
    """
    pitch = max(row * itemsize, swizzle_bytes)
    plain = np.arange(num_rows, dtype=np.int64)[:, None] * pitch + np.arange(row) * itemsize
    return (swizzled(plain.ravel() + phase, swizzle_bytes) - phase) // itemsize


def landed_bytes(start: int, landing: np.ndarray, itemsize: int) -> tuple[Any, int, int]:
    """Return the bytes of shared memory that a box lies in, and the first byte after them.

    - returns (tuple): a slice and 1, or where there are gaps the first byte of each element and its
      size; the end.
    """
    reach = (int(landing.max()) + 1) * itemsize if len(landing) else 0
    if reach == len(landing) * itemsize:
        return slice(start, start + reach), 1, start + reach
    return start + landing * itemsize, itemsize, start + reach


class BoundTensorMap:
    """A tensor map bound to the region it describes.

    - `address`: where its 128 bytes lie; in arithmetic the map is this number, as a pointer to it
      is.
    - `is_parameter`: whether they are a kernel's parameter, which nothing changes while the kernel
      runs.
    """

    __array_ufunc__ = None  # numpy leaves a sum with it to `__radd__`

    def __init__(
        self, arg: TensorMapArg, region: Region, address: int = 0, is_parameter: bool = True
    ) -> None:
        self.arg, self.region = arg, region
        self.address, self.is_parameter = address, is_parameter
        self.dtype = numpy_dtype(arg.dtype)
        self.itemsize = self.dtype.itemsize
        self.steps, self.counts = arg.steps, arg.counts
        self.strides = (self.itemsize, *arg.strides_bytes)
        self.swizzle_bytes = SWIZZLE_BYTES[arg.swizzle]
        self.num_elements = int(np.prod(self.counts))
        self.num_bytes = self.num_elements * self.itemsize  # out-of-bounds elements count too

    def __int__(self) -> int:
        return self.address

    def __add__(self, offset: Any) -> Any:
        return self.address + offset

    __radd__ = __add__

    def select(self, coords: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Return global byte offsets of a box, innermost fastest, and which are inside.

        - `coords` (sequence of int): start, innermost first.
        - returns (tuple): int64 offsets (num_elements,), and booleans of the same shape or None
          (all inside).
        """
        rank = len(self.counts)
        offsets = np.full((1,) * rank, self.arg.byte_offset, np.int64)
        inside: Any = None
        for d in range(rank):
            shape = [1] * rank
            shape[rank - 1 - d] = self.counts[d]
            position = int(coords[d]) + np.arange(self.counts[d], dtype=np.int64) * self.steps[d]
            offsets = offsets + (position * self.strides[d]).reshape(shape)
            if position[0] < 0 or position[-1] >= self.arg.dims[d]:
                valid = ((position >= 0) & (position < self.arg.dims[d])).reshape(shape)
                inside = valid if inside is None else inside & valid
        if inside is not None:
            inside = np.broadcast_to(inside, offsets.shape).ravel()
        return offsets.ravel(), inside

    def ends(self, coords: Any) -> np.ndarray:
        """Return the lowest and the highest byte offset of a box that lie inside; none if none do.

        - `coords` (sequence of int): start, innermost first.
        """
        ends = np.full(2, self.arg.byte_offset, np.int64)
        for start, count, step, size, stride in zip(
            coords, self.counts, self.steps, self.arg.dims, self.strides, strict=True
        ):
            first, last = int(start), int(start) + (count - 1) * step
            if first < 0:
                first += -(first // step) * step
            if last >= size:
                last -= -((size - 1 - last) // step) * step
            if first > last:
                return ends[:0]
            ends += (first * stride, last * stride)
        return ends

    def landing(self, phase: int) -> np.ndarray:
        """Return where each element of a box lands; see `landing_offsets`."""
        rows = self.num_elements // self.counts[0]
        return landing_offsets(self.counts[0], rows, self.itemsize, self.swizzle_bytes, phase)

    def fill(self) -> Any:
        """Return the value of out-of-bounds elements."""
        return np.nan if self.arg.oob and self.dtype.kind not in "iu" else 0
