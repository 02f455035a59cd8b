"""Few rows without tiles: what a kernel is made of, and the estimate of its time.

    time = start + bytes / memory                       bytes: of both operands and of the output

Constants are fitted to times of an H200 (docs/choice.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tvm import s_tir

from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests import keys

from .config import MatmulConfig
from .field_values import WEIGHTS
from .product_shape import ProductShape

Shape = TypeVar("Shape")
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


@dataclass(frozen=True)
class ThreadKernel(Generic[Shape]):
    """Plan of such a product."""

    rows: int  # of the output, that a thread block computes together
    shape: Shape  # how the work is distributed
    chosen: str  # what `explain` says of it
    chosen_for: tuple[int, ...]  # of a size class what `keys.CHOSEN_FOR` says, else nothing
    is_narrow: bool  # the program sums in 16 bits
    early: bool  # weights are loaded before earlier launches have ended

    def note(self, sch: s_tir.Schedule, loop: Any, kind: str) -> None:
        """Annotate the loop over thread blocks with the kind of kernel, and its choice."""
        sch.annotate(loop, keys.MEMORY_BOUND, kind)
        sch.annotate(loop, keys.CHOSEN, self.chosen)
        if self.chosen_for:
            sch.annotate(loop, keys.CHOSEN_FOR, list(self.chosen_for))
