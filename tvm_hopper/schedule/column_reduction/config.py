"""`ColumnReductionConfig`: threads, rows in flight, thread blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.requests.keys import INT32_MAX
from tvm_hopper.schedule.given_fields import GivenFields

MOST_VECTOR = 16  # elements of a vector: 16 bytes of the narrowest type
MOST_FLIGHT = 16  # rows that a thread loads at once: their registers are few
MOST_BLOCKS = 1 << 16  # that share a strip of columns: each has a value a column in memory


@dataclass(frozen=True, repr=False)
class ColumnReductionConfig(GivenFields):
    """Configuration of a column reduction; fields left out are chosen from the shape.

    Parameters
    ----------
    threads : int, optional
        Threads along the columns.
    rows : int, optional
        Threads along the rows.
    flight : int, optional
        Rows that a thread loads at once, up to 16. If its thread block has a whole column so, it
        stays in registers.
    blocks : int, optional
        Thread blocks that share the rows of the same columns.
    vector : int, optional
        Columns of a thread: a power of two up to 16, and at most 16 bytes of the widest tensor.
    group : int, optional
        For a reduction to one value: a divisor of the first dimension. Groups of so many neighbours
        are reduced by a row-reduction kernel instead of columns.

    Raises
    ------
    ScheduleError
        A value is illegal, or a thread block's threads are not whole warps or exceed 1024.
    """

    threads: int | None = None
    rows: int | None = None
    flight: int | None = None
    blocks: int | None = None
    vector: int | None = None
    group: int | None = None

    def __post_init__(self) -> None:
        where = "ColumnReductionConfig"
        most = {
            "threads": MAX_THREADS,
            "rows": MAX_THREADS,
            "flight": MOST_FLIGHT,
            "blocks": MOST_BLOCKS,
            "vector": MOST_VECTOR,
            "group": INT32_MAX,
        }
        self.set_ints(where, {name: (1, bound) for name, bound in most.items()})
        if self.vector is not None and self.vector & (self.vector - 1):
            raise cannot_schedule(where, f"vector={self.vector}", "a power of two")
        beside = [k for k in self.given if k != "group"]
        if self.group is not None and beside:
            found = f"group={self.group} next to {beside[0]}="
            raise cannot_schedule(where, found, "group= alone: no columns are left then")
        if self.threads is not None and self.rows is not None:
            check_threads(self.threads, self.rows)


def check_threads(threads: int, rows: int) -> None:
    """Refuse thread blocks that are too large, or no whole warps."""
    count = threads * rows
    if count > MAX_THREADS or count % THREADS_PER_WARP:
        found = f"{threads} x {rows} = {count} threads of a thread block"
        need = f"a multiple of {THREADS_PER_WARP}, at most {MAX_THREADS}"
        raise cannot_schedule("ColumnReductionConfig", found, need)


def config_of(tile: Any) -> ColumnReductionConfig:
    """Return how columns were distributed as a request: a schedule with it is this one."""
    names = ("threads", "rows", "flight", "blocks", "vector")
    return ColumnReductionConfig(**{name: getattr(tile, name) for name in names})
