"""Choose how strips of columns are distributed over thread blocks and their threads.

    time = launches + bytes / (memory's rate x share of the chip's bytes in flight) + waits

Rows that fit the registers of a thread block are loaded once. Others are loaded by each reduction
and by what is stored: out of L2, where all thread blocks on the chip find room there. Where columns
are few, thread blocks share the rows of a strip, and kernels follow one another: one of each group
of reductions that need no other's result, one that combines them, and one that stores elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.programming_model import (
    LINE_BYTES,
    MAX_THREADS,
    SECTOR_BYTES,
    THREADS_PER_WARP,
)
from tvm_hopper.requests.keys import MOST_BLOCKS_PER_SM
from tvm_hopper.schedule.memory_bound.estimate import MemoryModel, model_of_target

from .config import MOST_FLIGHT, ColumnReductionConfig
from .strip_kernel import ROWS_COMBINED_BY_EACH, StripTile

SIDES = (1, 2, 4, 8, 16, 32)  # threads side by side
THREADS = (32, 64, 128, 256, 512, 1024)  # of a thread block
FEWEST_THREADS = 128  # of one that does not keep its rows
FLIGHTS = (2, 4, 8)  # rows that a thread loads at once, of those that it does not keep
REGISTERS_PER_SM = 65536
MOST_REGISTERS = 168  # of a thread: beyond, too few of them hide a latency
REGISTERS_BESIDE = 24  # indices and the like
LINE_LOSS, SECTOR_LOSS = 0.05, 0.6  # share of time for each further part of a line, of a sector
MANY_ELEMENTS, MANY_LOSS = 64, 0.1  # of a thread, all unrolled: code that takes long to compile
L2_SHARE = 0.6  # of L2 that keeps what is loaded again
L2_COST = 0.45  # of memory's time for bytes that L2 has
SHARING_THREADS = 1024  # of an SM whose thread blocks share columns: each leaves its results
FEWEST_TRIPS = 4  # of such a thread block
LAUNCH_CYCLES = 4000.0  # of each kernel
BARRIER_CYCLES = 700.0  # of a reduction across threads, of each thread block in turn
BLOCK_CYCLES = 1500.0  # in which a thread block begins and ends


@dataclass(frozen=True)
class StripWork:
    """The work of a program of columns."""

    strips: int | None  # outer elements: each has its own columns; None: known at run time only
    length: int  # elements that are reduced to one
    columns: int  # neighbours
    vector: int  # elements of the widest vector that is legal
    loaded: int  # bytes that are loaded for each element
    narrow: int  # bytes of the narrowest element that is loaded
    stored: int  # bytes that are stored for each element
    kept: int  # bytes of results for each element that blocks after a reduction read
    reductions: int
    groups: int  # of reductions that need no other's result
    split: bool  # thread blocks may share columns


@dataclass(frozen=True)
class StripChoice:
    """A distribution, thread blocks that are to share an SM, and what to say of it."""

    tile: StripTile
    blocks_per_sm: int
    text: str
    early: bool = False  # launched before the kernel in front has ended


def choose_strips(
    work: StripWork, given: ColumnReductionConfig, model: MemoryModel | None = None
) -> StripChoice:
    """Choose what a configuration leaves open.

    - raises ScheduleError: the configuration fits no distribution of the program.
    """
    search = _StripSearch(work, given, model or model_of_target())
    found = sorted(search.tiles(), key=search.time)
    if not found:
        asked = ", ".join(f"{k}={getattr(given, k)}" for k in given.given) or "no field given"
        found_text = f"{asked} for {work.length} rows of {work.columns} columns"
        need = "whole warps, at most 1024 threads, rows for all, and registers for what they keep"
        raise cannot_schedule("ColumnReductionConfig", found_text, need)
    return StripChoice(found[0], search.room(found[0]), search.describe(found[0]))


def least_cycles(work: StripWork) -> float:
    """Estimate the cycles of the best kernel whose thread blocks have whole columns."""
    given = ColumnReductionConfig(blocks=1)
    search = _StripSearch(work, given, model_of_target())
    return min((search.time(x)[0] for x in search.tiles()), default=inf)


def cycles_of_sums(work: StripWork, count: int, in_flight: int) -> float:
    """Estimate the cycles of thread blocks that leave sums of rows, and of what combines them.

    - `in_flight`: bytes that one of them has requested.
    """
    model = model_of_target()
    sms = model.chip.num_sms
    flight = -(-count // sms) * in_flight
    share = min(1.0, count / sms, flight / model.flight(model.rates.enough_bytes))
    moved = work.length * work.columns * work.loaded
    return moved / (2 * model.loaded_bytes * sms * share) + 2 * LAUNCH_CYCLES


@dataclass(frozen=True)
class _StripSearch:
    work: StripWork
    given: ColumnReductionConfig
    model: MemoryModel

    def tiles(self) -> Iterator[StripTile]:
        """Yield the legal distributions."""
        work, given = self.work, self.given
        vectors = -(-work.columns // work.vector)
        most = next((x for x in SIDES if x >= vectors), SIDES[-1])
        sides = [given.threads] if given.threads else [x for x in SIDES if x <= most]
        counts = THREADS if given.rows is None else (given.rows * sides[0],)
        for side, count in product(sides, counts):
            rows = given.rows or count // side
            if side * rows > MAX_THREADS or side * rows % THREADS_PER_WARP or rows < 1:
                continue
            if given.rows is None and rows > 2 * work.length and count > THREADS[0]:
                continue
            yield from self._of_threads(side, rows)

    def _of_threads(self, side: int, rows: int) -> Iterator[StripTile]:
        work, given = self.work, self.given
        each = -(-work.length // rows)
        if given.blocks in (None, 1) and given.flight in (None, each):
            tile = StripTile(side, rows, work.vector, each)
            if each <= MOST_FLIGHT and self._fits(tile):
                yield tile
        if given.rows is None and side * rows < FEWEST_THREADS:
            return
        for flight in (given.flight,) if given.flight else FLIGHTS:
            trips = -(-each // flight)
            if trips > 1 and not work.kept and given.blocks in (None, 1):
                yield StripTile(side, rows, work.vector, flight, trips)
            for blocks in self._shares(side, rows, flight):
                trips = -(-work.length // (rows * flight * blocks))
                used = -(-work.length // (rows * flight * trips))  # the last ones may have none
                if used > 1:
                    yield StripTile(side, rows, work.vector, flight, trips, used)

    def _shares(self, side: int, rows: int, flight: int) -> Iterator[int]:
        """Yield how many thread blocks may share a strip's rows: waves of the chip."""
        work = self.work
        if not work.split or work.kept or self.given.blocks == 1:
            return
        if self.given.blocks:
            yield self.given.blocks
            return
        alone = self._count(StripTile(side, rows, work.vector, flight))
        room = self.model.chip.num_sms * max(1, SHARING_THREADS // (side * rows))
        most = work.length // (rows * flight * FEWEST_TRIPS)
        yield from {min(most, x * room // alone) for x in (1, 2)} - {0, 1}

    def _registers(self, tile: StripTile) -> int:
        work = self.work
        bytes_each = tile.vector * (work.loaded + work.kept)
        held = tile.flight * -(-bytes_each // 4)
        return held + tile.vector * (1 + work.reductions) + REGISTERS_BESIDE

    def _fits(self, tile: StripTile) -> bool:
        most = min(MOST_REGISTERS, REGISTERS_PER_SM // (tile.threads * tile.rows))
        return self._registers(tile) <= most

    def room(self, tile: StripTile) -> int:
        """Return the thread blocks that an SM has room for."""
        count = tile.threads * tile.rows
        by_registers = REGISTERS_PER_SM // (count * self._registers(tile))
        return max(1, min(by_registers, 2 * MAX_THREADS // count, MOST_BLOCKS_PER_SM))

    def _count(self, tile: StripTile) -> int:
        """Return the thread blocks of a kernel over elements."""
        strips = -(-self.work.columns // tile.width)
        return (self.work.strips or self.model.chip.num_sms) * strips * tile.blocks

    def time(self, tile: StripTile) -> tuple[float, int, int]:
        """Estimate the cycles of all kernels; of equal ones small thread blocks are better."""
        work, model, count = self.work, self.model, self._count(tile)
        chip, threads = model.chip, tile.threads * tile.rows
        rows = tile.rows * tile.flight * tile.trips * tile.blocks
        elements = count // tile.blocks * tile.width * rows  # and what threads have behind the end
        together = min(self.room(tile), -(-count // chip.num_sms))  # on an SM
        loaded = elements * work.loaded * (1 + self._passes_again(tile, together, count))
        many = tile.trips == 1 and tile.flight * tile.vector > MANY_ELEMENTS
        moved = (loaded + elements * work.stored) * (1 + self._lost(tile) + MANY_LOSS * many)
        at_once = min(tile.rows * tile.flight, work.length) * min(tile.width, work.columns)
        flight = together * at_once * work.loaded
        share = min(1.0, count / chip.num_sms, flight / model.flight(model.rates.enough_bytes))
        rate = 2 * model.loaded_bytes * chip.num_sms * share
        rate *= 1 - model.rates.idle_share / together**2
        exchanges = 0 if tile.rows == 1 else 1 + (tile.rows > ROWS_COMBINED_BY_EACH)
        turns = count / (chip.num_sms * together)
        exchange = work.reductions * exchanges * (BARRIER_CYCLES + threads)
        # others hide what a thread block waits for, but of the last one
        waits = max(turns / together, 1.0) * exchange + turns / together * BLOCK_CYCLES
        kernels = 2 * work.groups + bool(work.stored) if tile.blocks > 1 else 1
        return (moved / rate + waits + kernels * LAUNCH_CYCLES, threads, tile.threads)

    def _passes_again(self, tile: StripTile, together: int, count: int) -> float:
        """Return how often elements are loaded after the first time, by what that costs."""
        work, chip = self.work, self.model.chip
        if tile.trips == tile.blocks == 1:
            return 0.0
        passes = work.groups + bool(work.stored) - 1
        if tile.blocks > 1:
            return passes
        rows = tile.rows * tile.flight * tile.trips
        needed = min(count, together * chip.num_sms) * rows * tile.width * work.loaded
        return passes * (L2_COST if needed < L2_SHARE * chip.l2_bytes else 1)

    def _lost(self, tile: StripTile) -> float:
        """Return the share of time that is lost by strips that are narrower than a line."""
        work = self.work
        piece = tile.width * work.narrow
        if work.columns <= tile.width or piece >= LINE_BYTES:
            return 0.0
        lost = LINE_LOSS * (LINE_BYTES / max(piece, SECTOR_BYTES) - 1)
        return lost + SECTOR_LOSS * (SECTOR_BYTES / min(piece, SECTOR_BYTES) - 1)

    def describe(self, tile: StripTile) -> str:
        """Describe a choice for `explain`."""
        kept = "kept in registers" if tile.trips == tile.blocks == 1 else "at once"
        shares = ""
        if tile.blocks > 1:
            shares = f"; {tile.blocks} thread blocks share the rows of a strip"
        trips = f", {tile.trips} iterations" if tile.trips > 1 else ""
        return (
            f"{self._count(tile)} thread blocks of {tile.threads} x {tile.rows} threads, "
            f"{tile.flight} vectors of {tile.vector} each {kept}{trips}{shares}"
        )
