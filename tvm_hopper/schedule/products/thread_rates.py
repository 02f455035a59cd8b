"""Shared code of the estimates for few rows without tiles.

    time = start + bytes / memory                       bytes: of both operands and of the output

Constants are fitted to times of an H200 (docs/choice.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import dtype_bytes

from .config import MatmulConfig
from .field_values import WEIGHTS
from .product_shape import ProductShape

# Fields of a configuration that such ways go with; whatever else is given requests a tile.
BESIDE = ("form", "accumulate")


@dataclass(frozen=True)
class ThreadRates:
    """Constants of the estimate."""

    start_us: float  # launch, the first vectors' way and the last sums'
    memory_bytes: float  # bytes a microsecond of the device's memory


def asks_for_no_tile(given: MatmulConfig) -> bool:
    """Tell whether nothing is given that tiles alone have, or that keeps the order of sums."""
    # Blocks that load alone are what such ways are made of, too.
    beside = {*BESIDE}
    if not given.in_cluster:
        beside.add("cluster")
    if given.split_parts is None:
        beside.add("split_k")
    if given.early_launch == WEIGHTS:
        beside.add("early_launch")
    return beside.issuperset(given.given)


def estimate_threads(product: ProductShape, rates: ThreadRates, chip: Chip) -> float:
    """Estimate how long threads that load for themselves take, in microseconds."""
    size = dtype_bytes(product.dtype)
    moved = (product.n * product.k + product.m * product.k) * size
    moved += product.m * product.n * product.output_bytes
    return rates.start_us + moved / (rates.memory_bytes * chip.memory_rate)
