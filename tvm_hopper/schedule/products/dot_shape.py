"""How a product of few rows is dealt out to threads that compute dot products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.schedule.arguments import as_int

MOST_ROWS = 8  # of the output that a thread sums together
MOST_VECTORS = 16  # of weights that a thread has in flight for one column
MOST_COLUMNS = 8  # of the output that a thread sums together, where rows of weights run along k
VECTOR_BYTES = 16  # that a thread loads at once
FIELDS = ("threads", "groups", "columns", "vectors")


@dataclass(frozen=True)
class DotShape:
    """Who computes which part of which sum.

    Attributes
    ----------
    threads : int
        Threads that share a sum.
    groups : int
        Such groups in a thread block, side by side along the output's columns.
    columns : int
        Columns of the output that a group sums together. Where rows of the weights run along them,
        they are those of one vector, and this is 1.
    vectors : int
        Vectors of weights that a thread has in flight, for each of these columns.
    hint : str
        What the caches do with the weights; empty: as they do with everything.
    """

    threads: int
    groups: int
    columns: int = 1
    vectors: int = 4
    hint: str = ""

    def tile(self, along_k: bool, vector: int) -> tuple[int, int]:
        """Return the columns of a thread block, and the part of the sum that it has in flight."""
        if along_k:
            return self.groups * self.columns, self.threads * self.vectors * vector
        return self.groups * vector, self.threads * self.vectors

    @property
    def num_threads(self) -> int:
        """Threads of a thread block."""
        return self.threads * self.groups


def as_dots(where: str, value: Any) -> tuple[int, int, int, int] | bool | None:
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
    found = [
        as_int(where, f"dots, {name}", x, 1, limit) or 1
        for name, x, limit in zip(FIELDS, value, most, strict=True)
    ]
    threads, groups, columns, vectors = found
    if threads & (threads - 1) or vectors & (vectors - 1):
        need = "powers of two"
        raise cannot_schedule(where, f"dots with {threads} threads, {vectors} vectors", need)
    if threads * groups % THREADS_PER_WARP or threads * groups > MAX_THREADS:
        found_text = f"dots with {threads} x {groups} = {threads * groups} threads"
        need = f"a multiple of {THREADS_PER_WARP}, at most {MAX_THREADS}"
        raise cannot_schedule(where, found_text, need)
    return threads, groups, columns, vectors
