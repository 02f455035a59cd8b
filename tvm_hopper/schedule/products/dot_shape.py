"""Work distribution of products by dot products."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.schedule.given_fields import GivenFields

MOST_ROWS = 8  # of the output that a thread block computes together
MOST_COLUMNS = 8  # of the output that a thread sums together
MOST_VECTORS = 16  # of weights that a thread has in flight for one column
VECTOR_BYTES = 16  # that a thread loads at once


@dataclass(frozen=True)
class DotShape(GivenFields):
    """Work of each thread group of a product by dot products."""

    threads: int  # threads that share a sum, neighbours by their number
    groups: int  # such groups in a thread block, each with columns of the output of its own
    columns: int  # columns of the output that a group sums together
    vectors: int  # vectors of weights that a thread has in flight, for each of these columns

    def __post_init__(self) -> None:
        where = "DotShape"
        most = {
            **{"threads": MAX_THREADS, "groups": MAX_THREADS},
            **{"columns": MOST_COLUMNS, "vectors": MOST_VECTORS},
        }
        self.set_ints(where, {name: (1, limit) for name, limit in most.items()})
        if self.threads % THREADS_PER_WARP or self.threads * self.groups > MAX_THREADS:
            found = f"{self.groups} groups of {self.threads} threads"
            need = f"whole warps of {THREADS_PER_WARP} that share a sum"
            raise cannot_schedule(where, found, f"{need}, at most {MAX_THREADS} threads")

    def __str__(self) -> str:
        several = f", {self.columns} columns each" * (self.columns > 1)
        return (
            f"{self.threads} threads a sum, {self.groups} next to each other{several}, "
            f"{self.vectors} vectors in flight"
        )

    def step(self, vector: int) -> int:
        """Return the length of the part of a sum that is in flight, in elements."""
        return self.threads * self.vectors * vector
