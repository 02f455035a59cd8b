"""The configuration that a kernel over rows gets when the user names none.

Its currency is bytes in flight on an SM. Memory brings what is asked for after a latency, and a
thread block asks for a row, waits, reduces and stores before the next one takes its place:

    bytes a cycle = min(memory's share of an SM, bytes in flight / (latency + barriers x wait))
                    x (1 - lull / n^2)
    bytes in flight = n x bytes that a thread block loads at once, n thread blocks on an SM

The fewer thread blocks there are, the less there is to load while one of them reduces and stores.
Registers say how many: a thread has 64 where 1024 are on an SM, with four vectors each, 64 KiB
together. More than memory can use cost a little: reads and writes get in each other's way.

Long rows leave room for one or two thread blocks. They are loaded a second time, out of L1 or L2,
where they are used behind the last reduction, so that no register holds them while it runs.

Of configurations that are as fast, those with four vectors a thread are taken, and the smallest
thread block of at least four warps. Constants are fitted to RMSNorm, LayerNorm and softmax on an
H200 (docs/memory_bound.md).
"""

from __future__ import annotations

from dataclasses import replace
from math import log2

from tvm.target import Target

from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.requests.keys import MOST_BLOCKS_PER_SM
from tvm_hopper.requests.targets import find_processor
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile

from .config import THREADS_PER_SM, RowReductionConfig, fits_block
from .staged_model import (
    STAGED_PARTS,
    check_shared,
    check_staged,
    largest_power,
    order_few_staged,
    order_staged,
    shares_rows,
    staged_choices,
)
from .work import (
    BYTES_PER_CYCLE,
    CLUSTERS,
    LULL,
    REGISTERS_PER_SM,
    RowChoice,
    RowWork,
    in_flight,
    of_flight,
    of_grid,
    wants_hint,
)

ENOUGH_BYTES = 64 << 10  # in flight on an SM: registers are kept for no more
ENOUGH_AGAIN = 128 << 10  # the same, of rows that are loaded again
CROWDED = 0.965  # of memory's share is left above that
LONG_BYTES = 32 << 10  # of a row: below, thread blocks have it to themselves
CLUSTER_SHARE = 0.88  # the same, of clusters that have rows in registers
MOST_SHARED = 2  # times a row that a mean and squares may share there
CLOSE_CLUSTER, CLOSE_COLUMNS = 4, 1 << 15  # of which little is lost where rows have little to do
TWICE = 0.89  # the same, of one thread block that reduces long rows twice out of registers
BASE_REGISTERS = 30  # of a thread, beside its part of the row
BASE_AGAIN = 20  # the same, of rows that are loaded again, with a vector of what rows share
MOST_AGAIN = 3  # thread blocks of such rows on an SM: registers are worth more than a fourth
PER_REDUCTION = 8  # registers of each reduction behind the first, of rows that are loaded again
REGISTER_STEP = 8  # in which threads get them
REGISTERS_PER_THREAD = 255
MOST_CHUNKS = 8  # vectors of a thread: code grows with them, bytes in flight are enough
BEST_BYTES = 64  # that a thread loads at once
CLOSE_BYTES = 128  # the same, of small clusters
LIGHT_BYTES = 32  # the same, of rows of one tensor that are reduced once, and stored
VECTOR_BYTES, WIDE_BYTES = 16, 4  # of a vector, and of a wide element
FEWEST_THREADS = 128  # of a thread block
FEW_ROWS_CHUNKS = 2  # vectors of a thread where few rows leave four warps and more
SPLIT_CHUNKS = 4  # the same, of rows so few that each may have more thread blocks
SPLIT_SHARE = 16  # one row for so many SMs or more
FEW_ROWS = 4  # of an SM: below, its thread blocks are all at the same place
STREAM_BYTES = 32  # that a thread loads at once of rows that are streamed
STREAM_THREADS = (256, 512)  # of a row that is streamed once
FEWEST_PARTS = 2  # of such a row
STREAMED = 0.7  # of memory's share: L2 answers the second pass over a row
ALIKE = 0.99  # of the best rate: as fast
RUNNERS_UP = 2  # that `explain` shows
SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)


def registers(work: RowWork, chunks: int, recompute: bool, reload: bool) -> int:
    """Estimate the registers of a thread: of its part of a row, and of what it meets there."""
    row = -(-chunks * work.vector * work.loaded // 4)
    if reload:
        shared = -(-work.vector * work.shared // 4)
        return BASE_AGAIN + row + shared + PER_REDUCTION * (work.reductions - 1)
    kept = 0 if recompute else -(-chunks * work.vector * work.kept // 4)
    return BASE_REGISTERS + row + max(row, kept)


def least_registers(work: RowWork, chunks: int, recompute: bool, reload: bool) -> int:
    """Return the registers that a thread cannot do without: those of its part of a row."""
    held = max(work.loaded, 0 if recompute else work.kept + work.loaded // 2)
    return (BASE_AGAIN if reload else BASE_REGISTERS) + -(-chunks * work.vector * held // 4)


def blocks_of_sm(work: RowWork, tile: RegisterTile, num_registers: int, reload: bool) -> int:
    """Return how many thread blocks an SM has room for, and no more than bring enough bytes."""
    threads, columns = tile.threads * tile.rows, -(-work.columns // tile.cluster)
    given = -(-num_registers // REGISTER_STEP) * REGISTER_STEP
    room = min(REGISTERS_PER_SM // (given * threads), THREADS_PER_SM // threads, MOST_BLOCKS_PER_SM)
    enough = ENOUGH_AGAIN if reload else ENOUGH_BYTES
    room = min(room, MOST_AGAIN) if reload else room
    return max(1, min(room, enough // (tile.rows * columns * work.loaded or 1)))


def rate(
    work: RowWork, tile: RegisterTile, blocks: int, reload: bool = False, again: bool = False
) -> float:
    """Estimate the bytes that an SM, with so many thread blocks, loads in a cycle.

    Parameters
    ----------
    work : RowWork
        What there is to do.
    tile : RegisterTile
        How a row is dealt out.
    blocks : int
        Thread blocks on an SM.
    reload : bool
        Whether rows are loaded again behind the last reduction.
    again : bool
        Whether they are, or something dear is computed again.
    """
    blocks = of_grid(work, tile, blocks)
    flight = in_flight(work, tile, blocks)
    enough = ENOUGH_AGAIN if reload else ENOUGH_BYTES
    share = BYTES_PER_CYCLE * (CROWDED if flight > enough else 1)
    if _is_pair(work) and tile.chunks == tile.cluster == 1 and not again:
        return BYTES_PER_CYCLE * work.columns / tile.columns
    lull = 1 - LULL / max(1, blocks) ** 2
    if _is_close(work, tile) and not again:
        lull = 1
    elif tile.cluster > 1:
        lull *= CLUSTER_SHARE
    elif work.reductions > 1 and work.columns * work.loaded > LONG_BYTES:
        lull *= TWICE
    return lull * min(share, of_flight(work, tile, blocks))


def _is_close(work: RowWork, tile: RegisterTile) -> bool:
    """Tell small clusters whose threads do little for each byte of the one tensor that they load.

    They share nothing and read nothing late, or reduce long rows of elements of four bytes once,
    as a mean and the squares around it in equal parts are.
    The assembler has its way there: how many thread blocks share an SM is no longer what counts.
    """
    small = 1 < tile.cluster <= CLOSE_CLUSTER and work.columns <= CLOSE_COLUMNS
    wide = work.loaded == WIDE_BYTES and work.columns * work.loaded > STAGED_PARTS[1]
    few = work.shared <= MOST_SHARED * work.loaded and tile.columns == work.columns
    once = work.reductions == 1 or (work.moments and few)
    little = not work.waits_late or (wide and once)
    return small and little and _is_one_tensor(work)


def _is_one_tensor(work: RowWork) -> bool:
    return work.vector * work.loaded <= VECTOR_BYTES


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
        Rows cannot be staged as asked, or one thread block of a cluster has them whole.
    """
    if _passes_once(work, given):
        one = _streamed(work, given)
        return replace(one, text=_say(one, work), early_launch=bool(given.early_launch))
    early = _few_rows(work) if given.early_launch is None else given.early_launch
    if given.stage:
        found = staged_choices(work, given)
        check_staged(where, work, given, found)
    else:
        found = [x for x in _candidates(work, given) if x is not None]
        if given.stage is None and _is_long(work, given):
            found += staged_choices(work, given)
        if not found or given.chunks is not None:
            same = [x for x in found if x.tile.chunks == given.chunks]
            few = [x for x in found if x.tile.chunks < (given.chunks or 0)]  # that hold a row
            found = same or few or [_streamed(work, given)]
    best = max(x.rate for x in found)
    found = [x for x in found if shares_rows(work, x.tile)] or found
    found.sort(key=lambda x: _order(x, best, work))
    check_shared(where, work, found[0].tile)
    texts = [_say(x, work) for x in found[: 1 + RUNNERS_UP]]
    rest = "; then " + "; ".join(texts[1:]) if texts[1:] else ""
    begins = ", begins before the last launch has ended" if early else ""
    return replace(found[0], text=texts[0] + begins + rest, early_launch=early)


def _order(choice: RowChoice, best: float, work: RowWork) -> tuple[float, ...]:
    """Sort the fastest first, those as fast by their size.

    Where SMs have a row or none, nothing hides a latency: many threads load few vectors each.
    """
    tile, again = choice.tile, choice.reload
    if _few_rows(work) and choice.stage:
        return (again, choice.recompute, *order_few_staged(choice, work))
    if _few_rows(work):
        waste = tile.columns * tile.rows
        enough = tile.vector * FEWEST_THREADS
        fewest = work.splits and (work.rows or 0) * SPLIT_SHARE <= DEFAULT_NUM_SMS
        sizes = (SPLIT_CHUNKS, FEW_ROWS_CHUNKS) if fewest else (FEW_ROWS_CHUNKS,)
        wanted = next((x for x in sizes if work.columns >= x * enough), 1)
        off = abs(log2(tile.chunks / wanted))
        return (again, choice.recompute, off, not choice.preload, waste, tile.threads)
    group = 0.0 if choice.rate >= ALIKE * best else best - choice.rate
    if choice.stage:
        return (group, *order_staged(choice, work), 0, 0, 0)
    threads = max(tile.threads * tile.rows, FEWEST_THREADS)
    together = tile.rows > 1 and tile.threads > THREADS_PER_WARP  # rows wait for one another
    at_once = tile.vector * max(work.loaded, 1)
    best_bytes = LIGHT_BYTES if _is_light(work) or _is_pair(work) else BEST_BYTES
    best_bytes = CLOSE_BYTES if _is_close(work, tile) else best_bytes
    wanted_bytes = at_once if work.columns <= tile.vector * THREADS_PER_WARP else best_bytes
    off = abs(log2(tile.chunks * at_once / wanted_bytes))
    few = tile.threads <= THREADS_PER_WARP and tile.chunks * at_once <= BEST_BYTES
    early = few and work.reductions > 1  # no barrier hides the load
    return (group, again, together, off, threads, choice.recompute, choice.preload != early)


def _is_light(work: RowWork) -> bool:
    """Tell rows of one tensor that are reduced once, and stored: registers wait for one barrier."""
    return work.moved > work.loaded and work.reductions == 1 and _is_one_tensor(work)


def _is_pair(work: RowWork) -> bool:
    """Tell rows of two tensors alone that are reduced once, and stored: as a softmax's gradient.

    With a vector of each a thread waits for one barrier, and as many threads as there can be load.
    """
    two = VECTOR_BYTES < work.vector * work.loaded <= 2 * VECTOR_BYTES
    return two and work.moved > work.loaded and work.reductions == 1 and not work.waits_late


def _few_rows(work: RowWork) -> bool:
    return work.rows is not None and work.rows <= FEW_ROWS * DEFAULT_NUM_SMS


def _candidates(work: RowWork, given: RowReductionConfig) -> list[RowChoice | None]:
    sizes = SIZES if given.threads is None else (given.threads,)
    preloads = (True, False) if given.preload is None else (given.preload,)
    recomputes = (False, True) if given.recompute is None else (given.recompute,)
    reloads = (False, True) if given.reload is None else (given.reload,)
    return [
        _candidate(work, given, cluster, threads, preload, recompute, reload)
        for cluster in _clusters(work, given)
        for threads in sizes
        for preload in (preloads if work.shared else preloads[:1])
        for recompute in (recomputes if work.kept else recomputes[:1])
        for reload in (reloads if work.again else (False,))
        if recompute or not (reload and work.kept) or given.recompute is not None
    ]


def _clusters(work: RowWork, given: RowReductionConfig) -> tuple[int, ...]:
    """List the numbers of thread blocks that may share a row: one, unless it is long."""
    if given.cluster is not None:
        return (given.cluster,)
    return CLUSTERS if _is_long(work, given) else (1,)


def _is_long(work: RowWork, given: RowReductionConfig) -> bool:
    """Tell rows that clusters and shared memory are for, if nothing says how to cut them up."""
    is_own = all(x is None for x in (given.threads, given.rows, given.chunks))
    chip = find_processor(Target.current(allow_none=True))
    may = not isinstance(chip, Arch) or chip.has_clusters
    return is_own and may and work.columns * work.loaded > LONG_BYTES


def _candidate(
    work: RowWork,
    given: RowReductionConfig,
    cluster: int,
    threads: int,
    preload: bool,
    recompute: bool,
    reload: bool,
) -> RowChoice | None:
    rows = given.rows or max(1, FEWEST_THREADS // threads)
    chunks = -(-work.columns // (work.vector * threads * cluster))
    need = registers(work, chunks, recompute, reload)
    early = -(-chunks * work.vector * work.shared // 4) if preload else 0
    most = min(REGISTERS_PER_THREAD, REGISTERS_PER_SM // (threads * rows))
    if (
        not fits_block(threads, rows)
        or threads * rows * (given.blocks or 1) > THREADS_PER_SM
        or (cluster > 1 and threads % THREADS_PER_WARP)
        or least_registers(work, chunks, recompute, reload) + early > most
    ):
        return None
    if given.threads is None and (
        chunks > MOST_CHUNKS or (chunks == 1 and _too_wide(work, threads * cluster))
    ):
        return None
    tile = RegisterTile(threads, work.vector, chunks, rows, cluster)
    blocks, hint = given.blocks, given.hint
    if blocks is None:
        blocks = 1 if _few_rows(work) else blocks_of_sm(work, tile, need + early, reload)
    if hint is None:
        hint = wants_hint(work)
    again = reload or (recompute and work.kept > 0)
    speed = rate(work, tile, blocks, reload, again)
    if given.blocks is None and _is_close(work, tile) and not again:
        blocks = 1
    split = not reload and (recompute or not work.kept) and _splits(work, tile, given)
    return RowChoice(tile, preload, recompute, reload, blocks, hint, speed, split=split)


def _splits(work: RowWork, tile: RegisterTile, given: RowReductionConfig) -> bool:
    """Tell rows so few that SMs without one may reduce them, too, and store a part."""
    free = work.rows is not None and work.rows * tile.chunks <= DEFAULT_NUM_SMS
    whole = tile.columns == work.columns and tile.rows == tile.cluster == 1
    return work.splits and free and whole and tile.chunks > 1 and given.reload is None


def _passes_once(work: RowWork, given: RowReductionConfig) -> bool:
    """Tell long rows of which nothing has to wait: they are streamed as fast as memory goes."""
    parts = -(-work.columns // (work.vector * _stream_chunks(work) * STREAM_THREADS[0]))
    return work.passes == 1 and parts >= FEWEST_PARTS and given.is_open


def _stream_threads(work: RowWork, chunks: int) -> int:
    """Return many threads of few rows where L2 has to keep them, else fewer that end apart."""
    if work.passes > 1:
        return MAX_THREADS
    sizes = [x for x in STREAM_THREADS if x * chunks * work.vector * FEWEST_PARTS <= work.columns]
    return max(sizes, default=STREAM_THREADS[0])


def _round_threads(most: int) -> int:
    """Return the most threads that can share a row: whole warps, or an equal part of one."""
    if most >= THREADS_PER_WARP:
        return most // THREADS_PER_WARP * THREADS_PER_WARP
    return largest_power(max(1, most))


def _stream_chunks(work: RowWork) -> int:
    return max(1, STREAM_BYTES // (work.vector * max(work.loaded, 1)))


def _streamed(work: RowWork, given: RowReductionConfig) -> RowChoice:
    """Return the choice for rows that no thread block holds, nor loads at once."""
    chunks, cluster = given.chunks or _stream_chunks(work), given.cluster or 1
    threads, rows = given.threads or MAX_THREADS, given.rows or 1
    if given.threads is None:
        room = min(MAX_THREADS, THREADS_PER_SM // (given.blocks or 1)) // rows
        threads = _round_threads(min(_stream_threads(work, chunks), room))
    elif given.rows is None:
        rows = max(1, THREADS_PER_WARP // threads)
    chunks = min(chunks, -(-work.columns // (work.vector * threads * cluster)))
    tile = RegisterTile(threads, work.vector, chunks, rows, cluster)
    most = min(THREADS_PER_SM // (threads * tile.rows), MOST_BLOCKS_PER_SM)
    flight = tile.rows * tile.columns * work.loaded
    blocks = given.blocks or max(1, min(ENOUGH_BYTES // (flight or 1), most))
    hint = bool(given.hint)  # lines that are wanted until the second pass leave no room for others
    speed = (1 if work.passes == 1 else STREAMED) * BYTES_PER_CYCLE
    choice = RowChoice(tile, False, True, False, blocks, hint, speed)
    return replace(choice, is_streamed=True)


def _too_wide(work: RowWork, threads: int) -> bool:
    """Tell threads of which half would have nothing to load."""
    return threads > SIZES[0] and threads // 2 * work.vector >= work.columns


def _say(choice: RowChoice, work: RowWork) -> str:
    tile = choice.tile
    rows = f", {tile.rows} rows a thread block" if tile.rows > 1 else ""
    early = ", what rows share first" if work.shared and choice.preload else ""
    again = ", exponentials and the like twice" if work.kept and choice.recompute else ""
    again += ", rows loaded twice" if choice.reload else ""
    passes = "from shared memory" if choice.stage else "in parts"
    again += f", rows loaded {passes} by each pass" if choice.is_streamed else ""
    again += f", {tile.chunks} thread blocks a row, each stores a part" if choice.split else ""
    share = f"{100 * choice.rate / BYTES_PER_CYCLE:.0f}% of memory"
    part = f" in each of {tile.cluster} thread blocks of a cluster" if tile.cluster > 1 else ""
    text = f"{tile.threads} threads a row{part}, {tile.chunks} vectors of {tile.vector} each"
    room = f", {choice.blocks} thread blocks an SM" if choice.blocks > 1 else ""
    return f"{text}{rows}{early}{again}{room} ({share})"
