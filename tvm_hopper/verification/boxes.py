"""Cover elements of a tensor by few boxes."""

from __future__ import annotations

import math

import numpy as np

Box = tuple[tuple[int, int], ...]  # of each axis the first and the last index
SMALL = 4096  # elements of a box that is not cut any further
DENSE = 2  # a box holds at most so many times its elements, unless it is small


def cover(places: np.ndarray) -> list[Box]:
    """Return boxes around elements, in the order of their first corners.

    Parameters
    ----------
    places : numpy.ndarray
        Indices of the elements, (count, dimensions).
    """
    return sorted(_cut(places)) if len(places) else []


def _cut(places: np.ndarray) -> list[Box]:
    low, high = places.min(axis=0), places.max(axis=0)
    extents = high - low + 1
    volume = math.prod(map(int, extents))
    if volume <= max(DENSE * len(places), SMALL):
        return [tuple((int(a), int(b)) for a, b in zip(low, high, strict=True))]
    axis, at = _widest_gap(places) or (int(extents.argmax()), int(low[extents.argmax()]) - 1)
    if at < low[axis]:
        at = int(low[axis] + high[axis]) // 2
    below = places[:, axis] <= at
    return [*_cut(places[below]), *_cut(places[~below])]


def _widest_gap(places: np.ndarray) -> tuple[int, int] | None:
    """Return an axis and an index after which the most indices in a row are of no element."""
    found = None
    widest = 1
    for axis in range(places.shape[1]):
        present = np.unique(places[:, axis])
        gaps = np.diff(present)
        if len(gaps) and gaps.max() > widest:
            widest = int(gaps.max())
            found = axis, int(present[gaps.argmax()])
    return found
