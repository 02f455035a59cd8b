"""Work distribution of products whose warps load their operands directly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.schedule.arguments import as_int
from tvm_hopper.transforms.mma_sync.lower_mma_sync_plan import COLUMNS, ROWS, VECTOR

MOST_ROWS = 64  # of the output that a thread block computes together
MOST_COLUMNS = 256
MOST_DEPTH = 512
MOST_REGISTERS = 176  # of a thread, for operands and sums: the rest is for addresses
MOST_SHARED = 48 << 10  # bytes of a block's sums, without requesting more
FIELDS = ("warps", "columns", "depth")


@dataclass(frozen=True)
class DirectShape:
    """Work of each warp."""

    rows: int  # of the output that a thread block computes
    warps: int  # that share each of its sums
    columns: int  # of the output that a thread block computes
    depth: int  # of a sum that a warp has in flight

    def __str__(self) -> str:
        return (
            f"{self.warps} warps a sum, {self.columns} columns, {self.depth} of the sum in flight"
        )

    @property
    def registers(self) -> int:
        """Registers of a thread that hold operands and sums."""
        operands = (self.columns + self.rows) * self.depth // 2
        return (operands + self.rows * self.columns) // THREADS_PER_WARP

    @property
    def shared_bytes(self) -> int:
        """Bytes through which warps hand on their parts of sums."""
        return 4 * self.warps * self.rows * self.columns

    @property
    def shortfall(self) -> str:
        """Why a thread block has no room for it, and what would do; empty where it has."""
        if self.registers > MOST_REGISTERS:
            need = f"{self.registers} registers for operands and sums; at most {MOST_REGISTERS}"
            return f"{need}, by fewer columns or less depth"
        if self.shared_bytes > MOST_SHARED:
            need = f"{self.shared_bytes} bytes of shared memory for sums; at most {MOST_SHARED}"
            return f"{need}, by fewer warps or columns"
        elements = self.rows * self.columns // THREADS_PER_WARP
        if elements % self.warps:
            found = f"{self.warps} warps for {self.rows} x {self.columns} sums"
            return f"{found}; a number that divides {elements}: each thread adds up as many"
        return ""


def padded_rows(rows: int) -> int:
    """Return how many rows a thread block computes of an output of so many."""
    return min(-(-max(rows, 1) // COLUMNS) * COLUMNS, MOST_ROWS)


def steps_of(along_k: bool) -> tuple[int, int]:
    """Return what columns and depth are multiples of; rows of B run along k, or along columns."""
    return (ROWS, 4 * VECTOR) if along_k else (COLUMNS * VECTOR, 2 * VECTOR)


def as_direct(where: str, value: Any) -> tuple[int, ...] | bool | None:
    """Check what a configuration says of warps that load what they multiply.

    Raises
    ------
    ScheduleError
        It is no bool and no legal shape.
    """
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, (tuple, list)) or len(value) != len(FIELDS):
        need = f"True, False, or {len(FIELDS)} ints: {', '.join(FIELDS)}"
        raise cannot_schedule(where, f"direct={value!r}", need)
    most = (MAX_THREADS // THREADS_PER_WARP, MOST_COLUMNS, MOST_DEPTH)
    warps, columns, depth = (
        as_int(where, f"direct, {name}", x, 1, limit) or 1
        for name, x, limit in zip(FIELDS, value, most, strict=True)
    )
    if columns % ROWS or depth % (2 * VECTOR):
        found = f"direct with {columns} columns and a depth of {depth}"
        raise cannot_schedule(where, found, f"multiples of {ROWS} and of {2 * VECTOR}")
    return warps, columns, depth
