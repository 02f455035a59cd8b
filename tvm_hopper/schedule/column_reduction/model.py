"""Choose the configuration of a column reduction.

Its currency is bytes in flight on an SM, as for kernels over rows. Each thread sums its own
columns and writes one value a column to memory, which a second kernel reads: thread blocks are as
many as fill the device once, and fewer where each would have few rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.requests.keys import MOST_BLOCKS_PER_SM
from tvm_hopper.requests.targets import chip_of_target

from .config import MOST_FLIGHT, ColumnReductionConfig, check_threads

THREADS = 256  # of a thread block
BLOCKS_PER_SM = 4
THREADS_PER_SM = THREADS * BLOCKS_PER_SM  # of which each has 64 registers
ROWS_IN_FLIGHT_PER_THREAD = 8  # of 16-byte vectors: fewer threads leave fewer sums
FEWEST_TRIPS = 4  # of a thread's loop: below, what it writes is too much of what it reads
GROUP_ELEMENTS = 65536  # of a group of rows that is reduced to one value, at most
GROUPS_PER_SM = 4  # at least, of a reduction of all elements that is one of groups first
MOST_GROUPS = 65536  # whose values one row of thread blocks combines
MOST_IDLE = 0.98  # of the thread blocks that there is room for, at least
VECTORS_OF_SUMS = 4  # floats of 16 bytes: the second kernel loads as many partial sums at once


@dataclass(frozen=True)
class ColumnTile:
    """Distribution of rows and columns over threads."""

    threads: int  # side by side
    rows: int  # threads below one another
    vector: int  # columns of a thread
    flight: int  # rows that it loads at once
    blocks: int  # thread blocks that share a strip of columns

    @property
    def blocks_per_sm(self) -> int:
        """Thread blocks that share an SM, each thread with registers for all that it loads at once.

        Left alone the assembler takes so few that two of eight loads are in flight.
        """
        room = (
            THREADS_PER_SM
            * ROWS_IN_FLIGHT_PER_THREAD
            // max(ROWS_IN_FLIGHT_PER_THREAD, self.flight)
            // (self.threads * self.rows)
        )
        return max(1, min(MOST_BLOCKS_PER_SM, room))

    @property
    def parts(self) -> int:
        """Partial results of a column."""
        return self.blocks * self.rows


@dataclass(frozen=True)
class ColumnWork:
    """The work of a column reduction."""

    rows: int | None  # None: known at run time only
    columns: int
    vector: int  # elements of the widest vector that is legal
    loaded: int  # bytes that are loaded for each element
    written: int  # bytes of the partial results of a column


def choose_columns(work: ColumnWork, given: ColumnReductionConfig) -> tuple[ColumnTile, str]:
    """Choose what a configuration leaves open; return it, and what to say of it.

    - raises ScheduleError: the threads of a thread block would be no whole warps, or too many.
    """
    vectors = -(-work.columns // work.vector)
    threads = given.threads or _threads(vectors, given.rows)
    rows = given.rows or max(1, THREADS // threads)
    check_threads(threads, rows)
    if work.rows is not None and given.rows is None and 2 * rows > work.rows:
        rows, threads = 1, given.threads or max(threads, THREADS_PER_WARP)
    wide = ROWS_IN_FLIGHT_PER_THREAD * 16 // max(1, work.vector * work.loaded)
    flight = given.flight or max(1, min(MOST_FLIGHT, wide))
    if work.rows is not None and given.flight is None:
        flight = max(1, min(flight, work.rows // (2 * rows)))
    strips = -(-vectors // threads)
    blocks = given.blocks or _blocks(work, threads * rows, rows * flight, strips)
    if blocks * rows < 2:
        found = f"blocks={blocks} of one row of threads: one partial result"
        raise cannot_schedule("ColumnReductionConfig", found, "2 or more for each column")
    if work.rows is not None and blocks * rows * flight > work.rows:
        raise cannot_schedule(
            "ColumnReductionConfig",
            f"{work.rows} rows for {blocks} thread blocks of {rows} x {flight} rows",
            "a row for each of them, or more",
            "leave blocks=, rows= and flight= to the model" if work.rows > 1 else "",
        )
    tile = ColumnTile(threads, rows, work.vector, flight, blocks)
    return tile, _say(tile, work, strips)


def choose_group(extents: list[int | None]) -> int | None:
    """Choose how many neighbours of a first dimension are reduced to one value, if any are.

    Columns leave a value each for each thread block: of all elements that is more than is needed,
    and as many thread blocks as fit at once end apart.
    """
    first, *inner = extents
    if first is None or None in inner:
        return None
    size = prod(x or 0 for x in inner)
    most = max(1, GROUP_ELEMENTS // max(1, size))
    group = max(x for x in range(1, min(most, first) + 1) if first % x == 0)
    fewest = GROUPS_PER_SM * chip_of_target().num_sms
    return group if fewest <= first // group <= MOST_GROUPS else None


def _threads(vectors: int, rows: int | None) -> int:
    """Return the threads side by side: as many as have columns, a power of two."""
    most = THREADS if rows is None else max(1, THREADS // rows)
    threads = 1
    while threads < most and threads < vectors:
        threads *= 2
    return threads


def _blocks(work: ColumnWork, threads: int, step: int, strips: int) -> int:
    """Return how many thread blocks share a strip: with room for all of them at once."""
    most = max(1, BLOCKS_PER_SM * chip_of_target().num_sms * THREADS // threads // strips)
    if work.rows is not None:
        most = max(1, min(most, work.rows // (step * FEWEST_TRIPS)))
    whole = most // VECTORS_OF_SUMS * VECTORS_OF_SUMS
    if 0 < whole < MOST_IDLE * most:  # an SM without work costs more than partial sums one by one
        whole = most
    return whole or (2 if work.rows is None or work.rows >= 2 * step else 1)


def _say(tile: ColumnTile, work: ColumnWork, strips: int) -> str:
    count = strips * tile.blocks
    on_one = min(BLOCKS_PER_SM, -(-count // chip_of_target().num_sms))
    bytes_each = tile.threads * tile.rows * tile.vector * tile.flight * work.loaded
    sums = tile.parts * work.columns * work.written
    return (
        f"{count} thread blocks of {tile.threads} x {tile.rows} threads, {tile.flight} vectors of "
        f"{tile.vector} each: {on_one * bytes_each >> 10} KiB of an SM in flight; "
        f"{tile.parts} partial results of a column, {-(-sums >> 10)} KiB in all, combined in their "
        "order"
    )
