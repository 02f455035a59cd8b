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
) -> tuple[SharedTile, int] | None:
    """Choose a tile of whole cache lines on both sides, of equal parts of each extent; its threads.

    All of them have as many vectors, on both sides: a tile may go on after its extent for that.
    None where no such tile fits into shared memory.

    - `sides` (sequence of Expr): extents of i and j.
    - `loaded`, `beside` (list of Buffer): tensors with vectors along i, and those with vectors
      along j.
    - `given`: threads that are requested.
    """
    i, j = sides
    i_vector, j_vector = widest_vector(i, loaded), widest_vector(j, beside)
    widths = [max(dtype_bytes(ir.dtype_of(x)) for x in some) for some in (loaded, beside)]
    lines = [LINE_BYTES // x for x in widths]
    area = TILE_BYTES // widths[0]
    rows = _equal_parts(j, lines[1], j_vector, widths[1])
    columns = _equal_parts(i, max(lines[0], area // rows), i_vector, widths[0])
    rows = _equal_parts(j, max(lines[1], area // columns), j_vector, widths[1])
    grown = [
        SharedTile(columns + a * i_vector, rows + b * j_vector, i_vector, j_vector)
        for a in range(GROWTH)
        for b in range(GROWTH)
    ]
    grown = [x for x in grown if sum(map(x.num_bytes, loaded)) <= STATIC_SHARED_BYTES]
    grown.sort(key=lambda x: x.i * x.j)
    most = min(MAX_THREADS, max(THREADS, columns * rows // i_vector // MOST_CHUNKS))
    least = columns * rows // max(i_vector, j_vector)
    units = (MULTIPLE, THREADS_PER_WARP) if least >= CHUNKS * MULTIPLE else (THREADS_PER_WARP,)
    for unit in units:
        sizes = [given] if given else list(range(unit, most + 1, unit))
        for tile in grown:
            if fitting := [x for x in sizes if _is_full(tile, sides, x)]:
                return tile, fitting[-1]
    return None


def _is_full(tile: SharedTile, sides: Sequence[Any], threads: int) -> bool:
    """Tell whether threads have as many vectors each, of which none is after the end for all.

    TVM finds no registers for vectors that no thread has.
    """
    if any(count % threads for count in tile.counts):
        return False
    i, j = (ir.static_int(x) for x in sides)
    rows, columns = min(j or tile.j, tile.j), min(i or tile.i, tile.i)
    loaded, stored = tile.counts
    return (
        rows * (tile.i // tile.i_vector) > loaded - threads
        and columns * (tile.j // tile.j_vector) > stored - threads
    )


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
