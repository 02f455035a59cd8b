"""When a row is computed by dot products, and how they are dealt out.

    time = start + bytes / memory

Both constants are fitted to times of an H200 (docs/choice.md).  Of one row the time is set beside
that of the best tile; of two it is about the same, and above tensor cores win: a thread converts
each value of 16 bits before it multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import MAX_THREADS

from .config import MatmulConfig
from .dot_shape import MOST_VECTORS, VECTOR_BYTES, DotShape
from .estimate import ProductShape

# Fields of a configuration that dot products go with; whatever else is given asks for a tile.
BESIDE = ("dots", "accumulate", "batch_invariant")
SHORT, LONG = 256, 1024  # vectors of a sum
SIZES = (128, 160, 96, 192, 224)  # threads that share one of up to so many, the best ones first
LARGE_SIZES = (256, 224, 192, 288, 320, 160, 128)
MOST_CHOSEN = 1  # rows up to which dot products are chosen without being asked for


@dataclass(frozen=True)
class DotRates:
    """What the estimate is made of.

    Attributes
    ----------
    start_us
        Launch, the first vectors' way and the last sums'.
    memory_bytes
        Bytes a microsecond of the device's memory.
    """

    start_us: float = 2.5
    memory_bytes: float = 4.67e6


RATES = DotRates()


def may_be_dots(given: MatmulConfig) -> bool:
    """Tell whether a configuration leaves open, or asks, that dot products are computed."""
    if given.dots is not None:
        return given.dots is not False
    decided = (x for x in fields(given) if x.name not in BESIDE)
    return not given.batch_invariant and all(getattr(given, x.name) is None for x in decided)


def estimate_dots(product: ProductShape, chip: Chip) -> float:
    """Estimate how long dot products take, in microseconds."""
    size = dtype_bytes(product.dtype)
    moved = (product.n * product.k + product.m * product.k) * size
    moved += product.m * product.n * product.output_bytes
    return RATES.start_us + moved / (RATES.memory_bytes * chip.memory_rate)


def choose_dots(product: ProductShape, given: MatmulConfig, tile_us: float, chip: Chip) -> bool:
    """Tell whether dot products are estimated to take less than the best tile."""
    few = not product.is_symbolic and product.m <= MOST_CHOSEN
    is_served = product.majors == ("k", "k")
    return few and is_served and may_be_dots(given) and estimate_dots(product, chip) < tile_us


def choose_shape(rows: int, n: int, k: int, dtype: str, chip: Chip) -> DotShape:
    """Choose how sums are dealt out: all of a sum in flight at once, and one a thread block.

    More threads share it where it is long, and most where SMs have few sums to compute; so many
    that no vector reaches beyond its end, if there are any.
    """
    count = -(-k * dtype_bytes(dtype) // VECTOR_BYTES)
    if count <= SHORT:
        threads = 32 if count <= SHORT // 4 else 64
        return DotShape(threads, 128 // threads, 1, -(-count // threads))
    sizes, fewest = (SIZES, 2) if count <= LONG else (LARGE_SIZES, 4)
    whole = (x for x in sizes if count % x == 0 and fewest <= count // x <= MOST_VECTORS)
    threads = next(whole, sizes[0])
    if count > LONG and n <= chip.num_sms:
        threads = MAX_THREADS
    steps = -(-count // (threads * MOST_VECTORS))
    columns = 2 if rows > 1 else 1  # vectors of A are converted once for both
    vectors = -(-count // (threads * steps))
    return DotShape(threads, 1, columns, max(1, vectors // columns))
