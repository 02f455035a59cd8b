"""When warps load what they multiply, and how the work is dealt out.

    time = start + bytes / memory                       bytes: of the weights, and of A and C

Set beside the time of the best tile.  Constants are fitted to times of an H200 (docs/choice.md).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import dtype_bytes

from .config import MatmulConfig
from .direct_shape import DirectShape, padded_rows, steps_of
from .estimate import ProductShape

# Fields of a configuration that it goes with; whatever else is given asks for a tile.
BESIDE = ("direct", "dots", "accumulate", "batch_invariant", "early_weights", "split_mode")
MOST_CHOSEN = 0  # rows up to which it is chosen unasked: tiles were as fast or faster, measured


@dataclass(frozen=True)
class DirectRates:
    """What the estimate is made of.

    Attributes
    ----------
    start_us
        Launch, the first vectors' way and the last sums'.
    memory_bytes
        Bytes a microsecond of the device's memory.
    """

    start_us: float = 2.5
    memory_bytes: float = 4.6e6


RATES = DirectRates()
# Warps, columns and depth, the fastest first.
SHAPES_ALONG_K = ((8, 32, 128), (8, 32, 64), (4, 32, 64), (4, 16, 64))
SHAPES_ALONG_ROWS = ((16, 64, 64), (8, 64, 64), (8, 64, 32), (4, 64, 32), (2, 64, 32))


def may_be_direct(given: MatmulConfig) -> bool:
    """Tell whether a configuration leaves open, or asks, that warps load what they multiply."""
    if given.direct is not None:
        return given.direct is not False
    if given.dots:
        return False
    beside = BESIDE if given.in_cluster else (*BESIDE, "cluster")
    decided = (x for x in fields(given) if x.name not in beside)
    return not given.batch_invariant and all(getattr(given, x.name) is None for x in decided)


def estimate_direct(product: ProductShape, chip: Chip) -> float:
    """Estimate how long it takes, in microseconds."""
    size = dtype_bytes(product.dtype)
    moved = (product.n * product.k + product.m * product.k) * size
    moved += product.m * product.n * product.output_bytes
    return RATES.start_us + moved / (RATES.memory_bytes * chip.memory_rate)


def choose_direct(product: ProductShape, given: MatmulConfig, other_us: float, chip: Chip) -> bool:
    """Tell whether it is estimated to take less than the best other way."""
    few = not product.is_symbolic and product.m <= MOST_CHOSEN
    return few and may_be_direct(given) and estimate_direct(product, chip) < other_us


def choose_direct_shape(rows: int, along_k: bool) -> DirectShape:
    """Choose how the work is dealt out: as many warps and columns as a thread block has room for.

    Of few shapes that were timed; each warp has 128 bytes or more of a row in flight at once.
    """
    padded = padded_rows(rows)
    columns, depth = steps_of(along_k)
    shapes = [DirectShape(padded, *x) for x in (SHAPES_ALONG_K if along_k else SHAPES_ALONG_ROWS)]
    return next((x for x in shapes if not x.shortfall), DirectShape(padded, 1, columns, depth))
