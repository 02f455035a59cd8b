"""Choose whether and how a row is computed by dot products.

    time = start + bytes / memory

Both constants are fitted to times of an H200 (docs/choice.md).  Of one row the time is set next to
that of the best tile; of two it is about the same, and above tensor cores win: a thread converts
each value of 16 bits before it multiplies.
"""

from __future__ import annotations

import math

from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import MAX_THREADS

from .config import MatmulConfig
from .dot_shape import MOST_VECTORS, VECTOR_BYTES, DotShape
from .product_shape import ProductShape
from .thread_rates import ThreadRates, asks_for_no_tile, estimate_threads

# Threads that share a sum of up to so many vectors, the best ones first.
SIZES: tuple[tuple[float, tuple[int, ...]], ...] = (
    (64, (32,)),
    (256, (64, 32)),
    (1024, (128, 160, 96, 192, 224)),
    (math.inf, (256, 224, 192, 288, 320, 160, 128)),
)
MAX_IMBALANCE_SHARE = 0.05  # of a sum, that threads may do beyond the most even way
THREADS_FOR_SHORT_SUMS = 128  # of a thread block that has several short sums
MOST_CHOSEN = 1  # rows up to which dot products are chosen without being requested


RATES = ThreadRates(start_us=2.3, memory_bytes=4.67e6)


def may_be_dots(given: MatmulConfig) -> bool:
    """Tell whether a configuration leaves open, or asks, that dot products are computed."""
    return given.dots or (given.form is None and asks_for_no_tile(given))


def estimate_dots(product: ProductShape, chip: Chip) -> float:
    """Estimate how long dot products take, in microseconds."""
    return estimate_threads(product, RATES, chip)


def choose_dots(product: ProductShape, given: MatmulConfig, tile_us: float, chip: Chip) -> bool:
    """Tell whether dot products are estimated to take less than the best tile."""
    few = not product.is_symbolic and product.m <= MOST_CHOSEN
    is_served = product.majors == ("k", "k")
    return few and is_served and may_be_dots(given) and estimate_dots(product, chip) < tile_us


def choose_shape(rows: int, n: int, k: int, dtype: str, chip: Chip) -> DotShape:
    """Choose how sums are distributed: all of a sum in flight at once, and one a thread block.

    More threads share it where it is long, and most where SMs have few sums to compute; so many
    that next to no vectors reach beyond its end.
    """
    count = -(-k * dtype_bytes(dtype) // VECTOR_BYTES)
    sizes = next(sizes for most, sizes in SIZES if count <= most)
    if n <= chip.num_sms and sizes is SIZES[-1][1]:
        sizes = (MAX_THREADS,)
    padded = {x: _steps(count, x) * _vectors(count, x) * x for x in sizes}
    least = min(padded.values()) + MAX_IMBALANCE_SHARE * count
    threads = next(x for x in sizes if padded[x] <= least)
    columns = 2 if rows > 1 else 1  # vectors of A are converted once for both
    vectors = max(1, _vectors(count, threads) // columns)
    return DotShape(threads, max(1, THREADS_FOR_SHORT_SUMS // threads), columns, vectors)


def _steps(count: int, threads: int) -> int:
    return -(-count // (threads * MOST_VECTORS))


def _vectors(count: int, threads: int) -> int:
    return -(-count // (threads * _steps(count, threads)))
