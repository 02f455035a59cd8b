"""The configuration that a kernel over rows gets when the user names none.

Its currency is bytes in flight on an SM. Memory brings what is asked for after a latency, and a
thread block asks for a row, waits, reduces and stores before the next one takes its place:

    bytes a cycle = min(memory's share of an SM, bytes in flight / (latency + barriers x wait))
    bytes in flight = thread blocks on an SM x bytes that one loads at once

More than memory can use cost a little: reads and writes get in each other's way.
Of configurations that are as fast, the one with the smallest thread block is taken, of at least
four warps: more of them are at different places of their work, and memory always has something to
do. Constants are fitted to RMSNorm, LayerNorm and softmax on an H200 (docs/memory_bound.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile

from .config import RowReductionConfig, fits_block

BYTES_PER_CYCLE = 9.3  # that an SM's share of memory brings, while as many are stored
LATENCY = 2400  # cycles from a load to its data, of a memory that is busy
CROWDED_BYTES = 50 << 10  # in flight on an SM, above which
CROWDED = 0.965  # of memory's share is left
BARRIER, PER_THREAD = 300, 2  # cycles of a barrier, and for each thread that comes to it
BASE_REGISTERS = 30  # of a thread, beside its part of the row
REGISTERS_PER_SM = 65536
THREADS_PER_SM = 2048
BLOCKS_PER_SM = 32
MOST_CHUNKS = 8  # vectors of a thread: code grows with them, bytes in flight are enough
FEWEST_THREADS = 128  # of a thread block
FEW_ROWS = 4  # of an SM: below, its thread blocks are all at the same place
ALIKE = 0.98  # of the best rate: as fast
RUNNERS_UP = 2  # that `explain` shows
SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class RowWork:
    """What a kernel does to a row.

    Parameters
    ----------
    rows : int or None
        Rows, None if they are known at run time only.
    columns : int
        Elements of a row.
    vector : int
        Elements of the widest vector that is legal.
    loaded : int
        Bytes that are loaded for each element.
    shared : int
        Bytes for each column that all rows share.
    kept : int
        Bytes of results for each element that wait in registers.
    reductions : int
        One after another.
    """

    rows: int | None
    columns: int
    vector: int
    loaded: int
    shared: int
    kept: int
    reductions: int


@dataclass(frozen=True)
class RowChoice:
    """A configuration with nothing left open, what it amounts to, and what came after it."""

    tile: RegisterTile
    preload: bool
    recompute: bool
    rate: float  # bytes a cycle
    text: str = ""


def registers(work: RowWork, chunks: int, preload: bool, recompute: bool) -> int:
    """Estimate the registers of a thread."""
    held = work.loaded + (work.shared if preload else 0)
    held = max(held, 0 if recompute else work.kept + work.loaded // 2)
    return BASE_REGISTERS + -(-chunks * work.vector * held // 4)


def rate(work: RowWork, tile: RegisterTile, num_registers: int) -> float:
    """Estimate the bytes that an SM loads in a cycle."""
    threads = tile.threads * tile.rows
    blocks = min(
        REGISTERS_PER_SM // (num_registers * threads), THREADS_PER_SM // threads, BLOCKS_PER_SM
    )
    if work.rows is not None:  # a grid that leaves SMs empty has few to wait for
        blocks = min(blocks, -(-work.rows // (tile.rows * DEFAULT_NUM_SMS)))
    flight = blocks * tile.rows * work.columns * work.loaded
    barriers = work.reductions if tile.threads > THREADS_PER_WARP else 0
    wait = barriers * (BARRIER + PER_THREAD * threads)
    waste = work.columns / tile.columns
    share = BYTES_PER_CYCLE * (CROWDED if flight > CROWDED_BYTES else 1)
    return min(share, waste * flight / (LATENCY + wait))


def choose_rows(where: str, work: RowWork, given: RowReductionConfig) -> RowChoice:
    """Choose what a configuration leaves open.

    Parameters
    ----------
    where : str
        Names the program in an error message.
    work : RowWork
        What there is to do.
    given : RowReductionConfig
        What is decided already.

    Raises
    ------
    ScheduleError
        A row does not fit into the registers of a thread block.
    """
    found = [x for x in _candidates(work, given) if x is not None]
    if not found:
        most = _longest(work)
        raise cannot_schedule(
            where,
            f"rows of {work.columns} elements, {work.loaded} bytes loaded for each",
            f"rows that fit the registers of {MAX_THREADS} threads: {most} elements of these types",
            "leave the function to TVM, or reduce parts of rows first",
        )
    best = max(x.rate for x in found)
    found.sort(key=lambda x: _order(x, best, work))
    texts = [_say(x, work) for x in found[: 1 + RUNNERS_UP]]
    rest = "; then " + "; ".join(texts[1:]) if texts[1:] else ""
    return replace(found[0], text=texts[0] + rest)


def _order(choice: RowChoice, best: float, work: RowWork) -> tuple[float, ...]:
    """Sort the fastest first, those as fast by their size.

    Where SMs have a row or none, nothing hides a latency: many threads load few vectors each.
    """
    tile = choice.tile
    if work.rows is not None and work.rows <= FEW_ROWS * DEFAULT_NUM_SMS:
        waste = tile.columns * tile.rows
        return (choice.recompute, tile.chunks, not choice.preload, waste, tile.threads)
    group = 0.0 if choice.rate >= ALIKE * best else best - choice.rate
    threads = max(tile.threads * tile.rows, FEWEST_THREADS)
    return (choice.recompute, group, threads, tile.chunks, choice.preload)


def _candidates(work: RowWork, given: RowReductionConfig) -> list[RowChoice | None]:
    vectors = -(-work.columns // work.vector)
    sizes = SIZES if given.threads is None else (given.threads,)
    preloads = (True, False) if given.preload is None else (given.preload,)
    recomputes = (False, True) if given.recompute is None else (given.recompute,)
    return [
        _candidate(work, given, threads, -(-vectors // threads), preload, recompute)
        for threads in sizes
        for preload in (preloads if work.shared else preloads[:1])
        for recompute in (recomputes if work.kept else recomputes[:1])
    ]


def _candidate(
    work: RowWork,
    given: RowReductionConfig,
    threads: int,
    chunks: int,
    preload: bool,
    recompute: bool,
) -> RowChoice | None:
    rows = given.rows or max(1, FEWEST_THREADS // threads)
    need = registers(work, chunks, preload, recompute)
    most = min(255, REGISTERS_PER_SM // (threads * rows))
    if not fits_block(threads, rows) or need > most:
        return None
    if given.threads is None and (
        chunks > MOST_CHUNKS or (chunks == 1 and _too_wide(work, threads))
    ):
        return None
    tile = RegisterTile(threads, work.vector, chunks, rows)
    return RowChoice(tile, preload, recompute, rate(work, tile, need))


def _too_wide(work: RowWork, threads: int) -> bool:
    """Tell threads of which half would have nothing to load."""
    return threads > SIZES[0] and threads // 2 * work.vector >= work.columns


def _longest(work: RowWork) -> int:
    """Return the longest row that fits, of these types."""
    chunks = MOST_CHUNKS
    while chunks and registers(work, chunks, False, True) > REGISTERS_PER_SM // MAX_THREADS:
        chunks -= 1
    return chunks * work.vector * MAX_THREADS


def _say(choice: RowChoice, work: RowWork) -> str:
    tile = choice.tile
    rows = f", {tile.rows} rows a thread block" if tile.rows > 1 else ""
    early = ", what rows share first" if work.shared and choice.preload else ""
    again = ", exponentials and the like twice" if work.kept and choice.recompute else ""
    share = f"{100 * choice.rate / BYTES_PER_CYCLE:.0f}% of memory"
    text = f"{tile.threads} threads a row, {tile.chunks} vectors of {tile.vector} each"
    return f"{text}{rows}{early}{again} ({share})"
