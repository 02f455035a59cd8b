"""Choose how warps load their operands directly, and estimate what they take.

    time = start + bytes / memory                       bytes: of the weights, and of A and C

On request alone: tiles were as fast or faster, measured.
Constants are fitted to times of an H200 (docs/choice.md).
"""

from __future__ import annotations

from tvm_hopper.facts.devices import Chip

from .direct_shape import DirectShape, padded_rows, steps_of
from .product_shape import ProductShape
from .thread_rates import ThreadRates, estimate_threads

RATES = ThreadRates(start_us=2.5, memory_bytes=4.6e6)
# Warps, columns and depth, the fastest first.
SHAPES_ALONG_K = ((8, 32, 128), (8, 32, 64), (4, 32, 64), (4, 16, 64))
SHAPES_ALONG_ROWS = ((16, 64, 64), (8, 64, 64), (8, 64, 32), (4, 64, 32), (2, 64, 32))


def estimate_direct(product: ProductShape, chip: Chip) -> float:
    """Estimate how long it takes, in microseconds."""
    return estimate_threads(product, RATES, chip)


def choose_direct_shape(rows: int, along_k: bool) -> DirectShape:
    """Choose how the work is distributed: as many warps and columns as a thread block has room for.

    Few shapes were timed. Each warp has 128 bytes or more of a row in flight at once.
    """
    padded = padded_rows(rows)
    columns, depth = steps_of(along_k)
    shapes = [DirectShape(*x) for x in (SHAPES_ALONG_K if along_k else SHAPES_ALONG_ROWS)]
    return next((x for x in shapes if not x.shortfall(padded)), DirectShape(1, columns, depth))
