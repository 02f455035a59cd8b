"""Choose the tiles of a transposition, and where their elements lie.

   j   0  1  2 .. 7 | 8 ..            rows of X, with vectors along i
i  0   .  .  .    . | .               `pitch` elements lie between rows 0 and 8: a thread reads
   1   .  .  .    . | .               rows 0 to 7 of a column, the next one rows 8 to 15
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import (
    LINE_BYTES,
    MAX_THREADS,
    SECTOR_BYTES,
    THREAD_ACCESS_BYTES,
    THREADS_PER_WARP,
)
from tvm_hopper.schedule.memory_bound.tiles import is_multiple, widest_vector

from .config import MOST_CHUNKS

TILE_BYTES = 8192  # eight thread blocks of them are in flight on an SM
STATIC_SHARED_BYTES = 48 << 10  # of arrays whose size the compiler knows
THREADS = 256
Place = Callable[[Any, Any], list[Any]]  # of an element i, j of a tile, in an array
MULTIPLE, CHUNKS = 128, 2  # threads are a multiple, where each has so many vectors
GROWTH = 32  # vectors that a side of a tile may be longer, so that all threads have as many


@dataclass(frozen=True)
class SharedTile:
    """A tile of i times j elements: how many of each, and in vectors of how many."""

    i: int
    j: int
    i_vector: int
    j_vector: int

    @property
    def counts(self) -> list[int]:
        """Vectors along each side that it has."""
        return [self.i * self.j // x for x in (self.i_vector, self.j_vector)]

    def sides(self, along: str) -> tuple[int, int]:
        """Return the elements of a row along one side, and those of its vectors."""
        return (self.i, self.i_vector) if along == "i" else (self.j, self.j_vector)

    def pitch(self, dtype: str) -> int:
        """Return how far apart elements lie that threads next to one another read at once."""
        unit = max(1, THREAD_ACCESS_BYTES // dtype_bytes(dtype))
        return (-(-self.i * self.j_vector // unit) | 1) * unit

    def num_bytes(self, tensor: Any) -> int:
        """Return the bytes of shared memory that a tensor takes."""
        dtype = ir.dtype_of(tensor)
        return self.j // self.j_vector * self.pitch(dtype) * dtype_bytes(dtype)

    def in_shared(self, dtype: str) -> Place:
        """Return where elements of a tile lie in shared memory."""
        pitch, rows = self.pitch(dtype), self.j_vector
        return lambda i, j: [j // rows * pitch + j % rows * self.i + i]

    def of_thread(self, threads: int, along: str) -> Place:
        """Return the vector, the thread and the element where it lies in registers."""

        def place(i: Any, j: Any) -> list[Any]:
            row, x = (j, i) if along == "i" else (i, j)
            size, vector = self.sides(along)
            number = row * (size // vector) + x // vector
            return [number // threads, number % threads, x % vector]

        return place


def choose_tile(
    sides: Sequence[Any], loaded: list[Any], beside: list[Any], given: int | None
) -> tuple[SharedTile, int]:
    """Choose a tile of whole cache lines on both sides, of equal parts of each extent; its threads.

    All of them have as many vectors, on both sides: a tile may go on after its extent for that.

    Parameters
    ----------
    sides : sequence of Expr
        Extents of i and j.
    loaded, beside : list of Buffer
        What has vectors along i, and along j.
    given : int, optional
        Threads that are requested.

    Raises
    ------
    ScheduleError
        No tile that fits into shared memory has vectors for so many threads.
    """
    i, j = sides
    i_vector, j_vector = widest_vector(i, loaded), widest_vector(j, beside)
    widths = [max(dtype_bytes(ir.dtype_of(x)) for x in some) for some in (loaded, beside)]
    lines = [LINE_BYTES // x for x in widths]
    area = TILE_BYTES // widths[0]
    rows = _equal_parts(j, lines[1], j_vector, widths[1])
    columns = _equal_parts(i, max(lines[0], area // rows), i_vector, widths[0])
    rows = _equal_parts(j, max(lines[1], area // columns), j_vector, widths[1])
    vectors = (i_vector, j_vector)
    unit = given or (
        MULTIPLE if columns * rows >= CHUNKS * MULTIPLE * max(vectors) else THREADS_PER_WARP
    )
    grown = [
        SharedTile(columns + a * i_vector, rows + b * j_vector, i_vector, j_vector)
        for a in range(GROWTH)
        for b in range(GROWTH)
    ]
    grown = [x for x in grown if not any(count % unit for count in x.counts)]
    tile = min(grown, key=lambda x: x.i * x.j, default=None)
    if tile is None or tile.num_bytes(loaded[0]) > STATIC_SHARED_BYTES:
        found, need = f"threads={unit}", "a divisor of the number of vectors of a tile"
        raise cannot_schedule("PointwiseConfig", found, need, "leave it out")
    counts = tile.counts
    sizes = range(unit, max(THREADS, max(counts) // MOST_CHUNKS) + 1, unit)
    fitting = [x for x in sizes if x <= MAX_THREADS and not any(count % x for count in counts)]
    return tile, given or max(fitting)


def _equal_parts(extent: Any, most: int, vector: int, width: int) -> int:
    """Return the elements of a part, where an extent has as few as possible of at most so many.

    Parts begin at whole sectors, where all rows do.
    """
    while vector * width < SECTOR_BYTES and is_multiple(extent, 2 * vector):
        vector *= 2
    size, most = ir.static_int(extent), max(1, most // vector)
    if size is None:
        return most * vector
    vectors = size // vector
    return -(-vectors // -(-vectors // most)) * vector
