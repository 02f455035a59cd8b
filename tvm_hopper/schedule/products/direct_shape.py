"""Work distribution of products whose warps load their operands directly."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP, WORD_BYTES
from tvm_hopper.schedule.given_fields import GivenFields
from tvm_hopper.transforms.mma_sync.lower_mma_sync_plan import COLUMNS, ROWS, VECTOR

MOST_ROWS = 64  # of the output that a thread block computes together
MOST_COLUMNS = 256
MOST_DEPTH = 512
MOST_REGISTERS = 176  # of a thread, for operands and sums: the rest is for addresses
MOST_SHARED = 48 << 10  # bytes of a block's sums, without requesting more


@dataclass(frozen=True)
class DirectShape(GivenFields):
    """Work of each warp of a product whose warps load their operands."""

    warps: int  # that share each sum of a thread block
    columns: int  # of the output that a thread block computes
    depth: int  # of a sum that a warp has in flight, in elements

    def __post_init__(self) -> None:
        where = "DirectShape"
        warps = MAX_THREADS // THREADS_PER_WARP
        most = {"warps": warps, "columns": MOST_COLUMNS, "depth": MOST_DEPTH}
        self.set_ints(where, {name: (1, limit) for name, limit in most.items()})
        if self.columns % ROWS or self.depth % (2 * VECTOR):
            found = f"{self.columns} columns and a depth of {self.depth}"
            raise cannot_schedule(where, found, f"multiples of {ROWS} and of {2 * VECTOR}")

    def __str__(self) -> str:
        return (
            f"{self.warps} warps a sum, {self.columns} columns, {self.depth} of the sum in flight"
        )

    def registers(self, rows: int, stored_bytes: float = 2) -> int:
        """Return the registers of a thread that hold operands and sums of so many rows.

        - `stored_bytes`: of an element of B in memory.
        """
        operands = (self.columns * stored_bytes + 2 * rows) * self.depth / WORD_BYTES
        return int(operands + rows * self.columns) // THREADS_PER_WARP

    def shortfall(self, rows: int, stored_bytes: float = 2) -> str:
        """Say why a thread block has no room for so many rows, and what fits; empty if it has."""
        if (count := self.registers(rows, stored_bytes)) > MOST_REGISTERS:
            need = f"{count} registers for operands and sums; at most {MOST_REGISTERS}"
            return f"{need}, by fewer columns or less depth"
        if (size := 4 * self.warps * rows * self.columns) > MOST_SHARED:
            need = f"{size} bytes of shared memory for sums; at most {MOST_SHARED}"
            return f"{need}, by fewer warps or columns"
        return ""

    def adding(self, rows: int) -> tuple[int, int]:
        """Return how many warps add up elements of their own, and how many know each of them."""
        count = math.gcd(self.warps, rows * self.columns // THREADS_PER_WARP)
        return count, self.warps // count


def padded_rows(rows: int) -> int:
    """Return how many rows a thread block computes of an output of so many."""
    return min(-(-max(rows, 1) // COLUMNS) * COLUMNS, MOST_ROWS)


def steps_of(along_k: bool, run: int = VECTOR) -> tuple[int, int]:
    """Return what columns and depth are multiples of; rows of B run along k, or along columns.

    - `run`: neighbours along k in 16 bytes of B.
    """
    return (ROWS, 4 * run) if along_k else (COLUMNS * VECTOR, 2 * VECTOR)
