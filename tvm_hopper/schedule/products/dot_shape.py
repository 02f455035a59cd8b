"""Work distribution of products by dot products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.schedule.arguments import as_int

MOST_ROWS = 8  # of the output that a thread block computes together
MOST_COLUMNS = 8  # of the output that a thread sums together
MOST_VECTORS = 16  # of weights that a thread has in flight for one column
VECTOR_BYTES = 16  # that a thread loads at once
FIELDS = ("threads", "groups", "columns", "vectors")


@dataclass(frozen=True)
class DotShape:
    """Work of each thread group."""

    threads: int  # threads that share a sum, neighbours by their number
    groups: int  # such groups in a thread block, each with columns of the output of its own
    columns: int  # columns of the output that a group sums together
    vectors: int  # vectors of weights that a thread has in flight, for each of these columns

    def __str__(self) -> str:
        several = f", {self.columns} columns each" * (self.columns > 1)
        return (
            f"{self.threads} threads a sum, {self.groups} next to each other{several}, "
            f"{self.vectors} vectors in flight"
        )

    def step(self, vector: int) -> int:
        """Return the length of the part of a sum that is in flight, in elements."""
        return self.threads * self.vectors * vector


def as_dots(where: str, value: Any) -> tuple[int, ...] | bool | None:
    """Check what a configuration says of dot products.

    Raises
    ------
    ScheduleError
        It is no bool and no legal shape.
    """
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, (tuple, list)) or len(value) != len(FIELDS):
        need = f"True, False, or {len(FIELDS)} ints: {', '.join(FIELDS)}"
        raise cannot_schedule(where, f"dots={value!r}", need)
    most = (MAX_THREADS, MAX_THREADS, MOST_COLUMNS, MOST_VECTORS)
    found = tuple(
        as_int(where, f"dots, {name}", x, 1, limit) or 1
        for name, x, limit in zip(FIELDS, value, most, strict=True)
    )
    threads, groups, *_ = found
    if threads % THREADS_PER_WARP or threads * groups > MAX_THREADS:
        need = f"whole warps of {THREADS_PER_WARP} that share a sum, at most {MAX_THREADS} threads"
        raise cannot_schedule(where, f"dots with {groups} groups of {threads} threads", need)
    return found
