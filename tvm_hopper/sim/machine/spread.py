"""Where the lanes of an access lie next to the first one: few ways, looked up by their bytes."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """What is known of offsets from the first one.

    - `low`, `high`: the least and the greatest.
    - `bits`: all of them by a bitwise or: its lowest bit divides each.
    - `step`: how far each lies behind the one before; 0 if they differ in that.
    """

    low: int
    high: int
    bits: int
    step: int


def spread_of(offsets: np.ndarray) -> Spread:
    """Describe int64 offsets from the first of them."""
    return _described(offsets.tobytes())


@functools.lru_cache(maxsize=4096)
def _described(raw: bytes) -> Spread:
    offsets = np.frombuffer(raw, np.int64)
    step = int(offsets[1]) if len(offsets) > 1 else 0
    even = bool((np.diff(offsets) == step).all())
    bits = int(np.bitwise_or.reduce(offsets))
    return Spread(int(offsets.min()), int(offsets.max()), bits, step if even else 0)
