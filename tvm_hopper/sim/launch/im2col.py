"""Tensor maps in im2col mode: which pixels of a batch of images a copy reaches.

PTX ISA 9.1, 5.5.4 im2col mode; CUDA driver API, cuTensorMapEncodeIm2col. Coordinates are channel,
then width (height, depth) of a filter's corner, then image, innermost first. Corners run from the
lower corner of the bounding box to `dimension - 1 + upper corner`, width fastest, each by its
traversal stride, then on to the next image; an element is read at the corner plus the offsets that
the instruction adds. Elements outside of the tensor are filled, or not written.

The driver refuses maps that break these rules with CUDA_ERROR_INVALID_VALUE.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tvm_hopper.facts import tensor_map as rules
from tvm_hopper.sim.launch.tma import SWIZZLE_BYTES, BoundTensorMap, TensorMapArg
from tvm_hopper.sim.machine.memory import Region

MAX_CHANNELS, MAX_PIXELS = 256, 1024
_CORNER_BITS = {3: 16, 4: 8, 5: 5}  # signed; of an offset, which has no sign, as many


class Im2colMap(BoundTensorMap):
    """A tensor map in im2col mode, bound to the region that it describes."""

    @property
    def rank(self) -> int:
        """Number of coordinates."""
        return len(self.arg.dims)

    def trouble(self, coords: Sequence[int], offsets: Sequence[int]) -> str:
        """Return why an instruction may not have these operands; empty if it may."""
        limit = 1 << _CORNER_BITS[self.rank]
        if any(not 0 <= offset < limit for offset in offsets):
            return f"im2col offsets {tuple(offsets)}: need 0 to {limit - 1}"
        for i, (start, low, high) in enumerate(zip(coords[1:-1], *self._box(), strict=True)):
            if not low <= start <= high:
                return (
                    f"a filter corner at {start} in dimension {i + 1}: need one in the bounding "
                    f"box, {low} to {high}"
                )
        return ""

    def _box(self) -> tuple[list[int], list[int]]:
        lows = list(self.arg.lower)
        tops = [d - 1 + u for d, u in zip(self.arg.dims[1:-1], self.arg.upper, strict=True)]
        return lows, tops

    def _pixels(self, coords: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield the corners of a column: width, height, depth, image."""
        lows, tops = self._box()
        place = [int(c) for c in coords[1:]]
        for _ in range(self.counts[1]):
            yield tuple(place)
            for i, (low, top) in enumerate(zip(lows, tops, strict=True)):
                place[i] += self.steps[i + 1]
                if place[i] <= top:
                    break
                place[i] = low
            else:
                place[-1] += 1

    def select(
        self, coords: Any, offsets: Sequence[int] = ()
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return global byte offsets of a column of pixels, channels fastest; which are inside."""
        pixels = np.array(list(self._pixels(coords)), np.int64)
        pixels[:, : len(offsets)] += np.asarray(offsets, np.int64)
        channels = int(coords[0]) + np.arange(self.counts[0], dtype=np.int64)
        dims = np.asarray(self.arg.dims, np.int64)
        kept = np.all((pixels >= 0) & (pixels < dims[1:]), axis=1)
        inside = kept[:, None] & ((channels >= 0) & (channels < dims[0]))
        places = pixels @ np.asarray(self.strides[1:], np.int64)
        found = self.arg.byte_offset + places[:, None] + channels * self.itemsize
        return found.ravel(), None if inside.all() else inside.ravel()

    def ends(self, coords: Any, offsets: Sequence[int] = ()) -> np.ndarray:
        """Return the lowest and the highest byte offset that lie inside; none if none do."""
        found, inside = self.select(coords, offsets)
        reached = found if inside is None else found[inside]
        return np.array([reached.min(), reached.max()]) if len(reached) else reached


def check_im2col(arg: TensorMapArg) -> list[str]:
    """Return every broken rule as "found ...; need ...", empty when the driver will agree."""
    rank = len(arg.dims)
    if rank not in _CORNER_BITS:
        return [f"found rank {rank}; need 3 to 5"]
    broken = []
    channels, pixels = arg.box
    for name, value, most in (
        ("channels a pixel", channels, MAX_CHANNELS), ("pixels a column", pixels, MAX_PIXELS)
    ):  # fmt: skip
        if not 1 <= value <= most:
            broken.append(f"found {value} {name}; need 1 to {most}")
    limit = 1 << _CORNER_BITS[rank] - 1
    for name, corner in (("lower", arg.lower), ("upper", arg.upper)):
        if any(not -limit <= c < limit for c in corner):
            broken.append(f"found {name} corner {corner}; need {-limit} to {limit - 1}")
    spatial = zip(arg.dims[1:-1], arg.lower, arg.upper, strict=True)
    if any(low > dim - 1 + top for dim, low, top in spatial):
        broken.append(f"found an empty bounding box, corners {arg.lower} and {arg.upper}")
    # The rest is as of a tiled map whose box is one pixel of these channels.
    box = (min(max(channels, 1), MAX_CHANNELS), *(1,) * (rank - 1))
    return [*broken, *check_tiled(arg, box)]


def check_tiled(arg: TensorMapArg, box: tuple[int, ...]) -> list[str]:
    """Return the broken rules of a map as one of tiled mode, with a box."""
    swizzle = SWIZZLE_BYTES.get(arg.swizzle, arg.swizzle)
    oob = {code: name for name, code in rules.OOB_CODE.items()}.get(arg.oob, str(arg.oob))
    tiled = rules.TensorMap(
        arg.dtype, arg.dims, arg.strides_bytes, box, arg.element_strides, swizzle, oob
    )
    return list(tiled.check())


def bound_map(
    arg: TensorMapArg, region: Region, address: int = 0, is_parameter: bool = True
) -> BoundTensorMap:
    """Bind a tensor map of either mode to the region that it describes."""
    kind = Im2colMap if arg.lower else BoundTensorMap
    return kind(arg, region, address, is_parameter)
