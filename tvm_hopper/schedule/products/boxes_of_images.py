"""Cut images into boxes of a number of pixels."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from tvm_hopper.facts import tensor_map as maps


def choose_box(
    extents: Sequence[Any], steps: Sequence[int], rows: int, tiles: int = 1
) -> tuple[int, ...] | None:
    """Cut images into boxes of a number of pixels: as few as possible, then the longest rows.

    - `extents` (sequence of int or expression): of the axes of images, outermost first; a symbolic
      one is not cut.
    - `steps`: elements of the tensor from one pixel to the next: a box spans no more than a tensor
      map's.
    - `rows`: pixels of a box.
    - returns: pixels along each axis; None where no box has that many.
    """
    best: tuple[Any, ...] = ()

    def cut(axis: int, left: int, chosen: tuple[int, ...], count: int) -> None:
        nonlocal best
        if axis < 0:
            found = (count, tuple(-x for x in reversed(chosen)), chosen)
            if left == 1 and (not best or found < best):
                best = found
            return
        extent = extents[axis] if isinstance(extents[axis], int) else 1
        for size in range(1, min(left, maps.MAX_BOX // steps[axis]) + 1):
            if left % size or (size > 1 and not isinstance(extents[axis], int)):
                continue
            inside, part = rows // left * size, rows // tiles
            if inside % part and part % inside:
                continue
            cut(axis - 1, left // size, (size, *chosen), count * -(-extent // size))

    cut(len(extents) - 1, rows, (), 1)
    return best[2] if best else None


@functools.lru_cache(maxsize=256)
def count_boxes(extents: tuple[int, ...], steps: tuple[int, ...], rows: int) -> int | None:
    """Return how many boxes of a number of pixels cover the images; None where there are none."""
    box = choose_box(extents, steps, rows)
    pairs = zip(extents, box or (), strict=False)
    return math.prod(-(-extent // size) for extent, size in pairs) if box else None
