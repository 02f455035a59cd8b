"""When few rows are computed by dot products, and how they are dealt out.

    time = start + norm(bytes / memory, rows of weights and of A / instructions)

The constants are fitted to times of an H200 (docs/choice.md).  Up to `MOST_CHOSEN` rows the time is
set beside that of the best tile; above, tensor cores win: each value of 16 bits that a thread
multiplies is converted first.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import dtype_bytes

from .config import MatmulConfig
from .dot_shape import VECTOR_BYTES, DotShape
from .estimate import ProductShape

# Fields of a configuration that dot products go with; whatever else is given asks for a tile.
BESIDE = ("dots", "accumulate", "batch_invariant")
MOST_CHOSEN = 2  # rows up to which dot products may be chosen


@dataclass(frozen=True)
class DotRates:
    """What the estimate is made of.

    Attributes
    ----------
    start_us
        Launch, and the first and the last vectors' way.
    memory_bytes
        Bytes a microsecond of the device's memory.
    """

    start_us: float = 2.6
    memory_bytes: float = 4.52e6


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


def choose_shape(rows: int, k: int, dtype: str) -> DotShape:
    """Choose how sums are dealt out: as few vectors as can be reach beyond the end of a sum."""
    vector = VECTOR_BYTES // dtype_bytes(dtype)
    count = -(-k // vector)
    best = None
    for threads in (128, 256, 64, 32, 224, 192, 160, 96):
        for vectors in (4, 8, 7, 6, 5, 3, 2, 1):
            steps = -(-count // (threads * vectors))
            beyond = steps * threads * vectors / count - 1
            few = max(0, 4 - vectors) / 4
            key = beyond + 0.1 * few
            if best is None or key < best[0] - 1e-9:
                best = key, DotShape(threads, max(1, 128 // threads), 1, vectors)
    assert best is not None
    return best[1]


def choose_dots(product: ProductShape, given: MatmulConfig, tile_us: float, chip: Chip) -> bool:
    """Tell whether dot products are estimated to take less than the best tile."""
    few = not product.is_symbolic and product.m <= MOST_CHOSEN
    is_served = product.majors == ("k", "k")
    return few and is_served and may_be_dots(given) and estimate_dots(product, chip) < tile_us
