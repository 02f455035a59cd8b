"""Choose the configuration of a row kernel.

Its currency is bytes in flight on an SM, see `memory_bound/estimate.py`. Registers say how many: a
thread has 64 where 1024 are on an SM, with four vectors each, 64 KiB together.

Long rows leave room for one or two thread blocks. They are loaded again from L1 or L2 after the
last reduction, so that they take no registers during it.

Of configurations that are as fast, those with four vectors a thread are taken, and the smallest
thread block of at least four warps (docs/memory_bound.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import log2

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.requests.keys import MOST_BLOCKS_PER_SM, MOST_ROW_CLUSTER
from tvm_hopper.schedule.memory_bound.estimate import (
    LONG_BYTES,
    MemoryModel,
    has_clusters,
    is_close,
    model_of_target,
)
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile
from tvm_hopper.schedule.memory_bound.work import RowWork

from .choice import CLUSTERS, RowChoice
from .config import MOST_UNROLL, THREADS_PER_SM, RowReductionConfig, fits_block
from .occupancy import (
    REGISTERS_PER_SM,
    REGISTERS_PER_THREAD,
    blocks_of_registers,
    compute_rate,
    least_registers,
    preloaded_registers,
    registers,
)
from .staged_model import (
    check_shared,
    check_staged,
    largest_power,
    order_few_staged,
    order_staged,
    shares_rows,
    staged_choices,
)

MOST_CHUNKS = 8  # vectors of a thread: code grows with them, bytes in flight are enough
FEWEST_THREADS = 128  # of a thread block
# Bytes that a thread loads at once: of rows, of small clusters, and of rows of one tensor that are
# reduced once, and stored.
BYTES_PER_THREAD, BEST_CLOSE_BYTES, BEST_LIGHT_BYTES = 64, 128, 32
MAX_CHUNKS_FEW_ROWS = 2  # vectors of a thread where few rows leave four warps and more
MAX_CHUNKS_SPLIT_ROWS = 4  # vectors of a thread where each row may have more thread blocks
SMS_PER_SPLIT_ROW = 16  # one row for so many SMs or more is split
STREAM_BYTES = 32  # that a thread loads at once of rows that are streamed
FEW_STREAM_BYTES = 64  # likewise of few rows: few thread blocks of an SM load at a time
FEW_STREAM_BLOCKS = 2  # thread blocks that each SM gets of few rows, by clusters
STREAM_THREADS = (256, 512)  # of a row that is streamed once
FEWEST_PARTS = 2  # of such a row
SAME_RATE = 0.99  # of the best rate: as fast
RUNNERS_UP = 2  # that `explain` shows
NOT_UNROLLED = "which several warps share, or which are staged, streamed or begin at any element"
SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)


def choose_rows(
    where: str, work: RowWork, given: RowReductionConfig, model: MemoryModel | None = None
) -> RowChoice:
    """Choose what a configuration leaves open.

    - `where`: names the program in an error message.
    - `model`: what a chip does; None: that of the target in scope.
    - raises ScheduleError: rows cannot be staged as asked, or one thread block of a cluster has
      them whole.
    """
    search = _RowSearch(work, given, model or model_of_target())
    if search.passes_once:
        one = search.streamed
        return replace(one, text=search.describe(one), early_launch=bool(given.early_launch))
    early = search.is_few if given.early_launch is None else given.early_launch
    found = search.find(where)
    best = max(x.rate for x in found)
    found = [x for x in found if shares_rows(work, x.tile)] or found
    found.sort(key=lambda x: search.order(x, best))
    check_shared(where, work, found[0].tile)
    if found[0].tile.unroll != (given.unroll or found[0].tile.unroll):
        found_text = f"unroll={given.unroll} for rows of {work.columns} elements, {NOT_UNROLLED}"
        need = "rows that at most a warp shares, in registers, of whole vectors"
        raise cannot_schedule(where, found_text, need, "leave unroll= out, or give threads=")
    texts = [search.describe(x) for x in found[: 1 + RUNNERS_UP]]
    rest = "; then " + "; ".join(texts[1:]) if texts[1:] else ""
    begins = ", begins before the last launch has ended" if early else ""
    return replace(found[0], text=texts[0] + begins + rest, early_launch=early)


@dataclass(frozen=True)
class _RowSearch:
    """The configurations for a program that are legal, and their order."""

    work: RowWork
    given: RowReductionConfig
    model: MemoryModel

    @cached_property
    def is_few(self) -> bool:
        """Whether SMs have a few rows each or none."""
        return self.model.has_few(self.work.rows)

    @cached_property
    def is_long(self) -> bool:
        """Whether clusters and shared memory are for the rows, if nothing says how to cut them."""
        given, work = self.given, self.work
        is_own = all(x is None for x in (given.threads, given.rows, given.chunks))
        return is_own and has_clusters() and work.columns * work.loaded > LONG_BYTES

    def find(self, where: str) -> list[RowChoice]:
        """List the choices that are legal; rows that none of them holds are streamed."""
        work, given = self.work, self.given
        if given.stage:
            found = staged_choices(work, given, self.model)
            check_staged(where, work, given, found)
            return found
        found = self._in_registers()
        if given.stage is None and self.is_long:
            found += staged_choices(work, given, self.model)
        if found and given.chunks is None:
            return found
        same = [x for x in found if x.tile.chunks == given.chunks]
        few = [x for x in found if x.tile.chunks < (given.chunks or 0)]  # that hold a row
        return same or few or [self.streamed]

    # -- rows in registers ------------------------------------------------------------------------

    def _in_registers(self) -> list[RowChoice]:
        given, work = self.given, self.work
        sizes = SIZES if given.threads is None else (given.threads,)
        preloads = (True, False) if given.preload is None else (given.preload,)
        recomputes = (False, True) if given.recompute is None else (given.recompute,)
        reloads = (False, True) if given.reload is None else (given.reload,)
        ways = product(
            self._clusters,
            sizes,
            preloads if work.shared else preloads[:1],
            recomputes if work.kept else recomputes[:1],
            reloads if work.again else (False,),
        )
        found = [
            self._candidate(cluster, threads, preload, recompute, reload)
            for cluster, threads, preload, recompute, reload in ways
            if recompute or not (reload and work.kept) or given.recompute is not None
        ]
        return [x for x in found if x is not None]

    @property
    def _clusters(self) -> tuple[int, ...]:
        """The numbers of thread blocks that may share a row: one, unless it is long."""
        if self.given.cluster is not None:
            return (self.given.cluster,)
        return CLUSTERS if self.is_long else (1,)

    def _candidate(
        self, cluster: int, threads: int, preload: bool, recompute: bool, reload: bool
    ) -> RowChoice | None:
        work, given = self.work, self.given
        rows = given.rows or max(1, FEWEST_THREADS // threads)
        chunks = -(-work.columns // (work.vector * threads * cluster))
        # of shifted rows, conditions keep the compiler from loading a vector after another's use
        early = preloaded_registers(work, chunks) if preload or work.shift else 0
        tile = RegisterTile(threads, work.vector, chunks, rows, cluster, work.shift)
        tile = replace(tile, unroll=self._unroll(tile))
        held = chunks * tile.unroll
        least = least_registers(work, held, recompute, reload) + early
        if not self._is_legal(tile, least):
            return None
        need = registers(work, held, recompute, reload) + early
        blocks, hint = given.blocks, given.hint
        if blocks is None:
            blocks = blocks_of_registers(work, tile, need, reload, self.model)
            blocks = 1 if self.is_few else blocks
        if hint is None:
            hint = self.model.wants_hint(work)
        again = reload or (recompute and work.kept > 0)
        speed = self.model.register_rate(work, tile, blocks, reload, again)
        speed = min(speed, compute_rate(work, recompute))
        if given.blocks is None and is_close(work, tile) and not again:
            blocks = 1
        split = not reload and (recompute or not work.kept) and self._splits(tile)
        return RowChoice(tile, preload, recompute, reload, blocks, hint, speed, split=split)

    def _unroll(self, tile: RegisterTile) -> int:
        """Return the rows of a thread that bring enough bytes, where no warp waits for another."""
        if self.given.unroll is not None:
            return self.given.unroll
        at_once = tile.chunks * tile.vector * max(self.work.loaded, 1)
        if not _is_alone(tile) or self.is_few or self.given.blocks is not None:
            return 1
        return largest_power(max(1, min(BYTES_PER_THREAD // at_once, MOST_UNROLL)))

    def _is_legal(self, tile: RegisterTile, least: int) -> bool:
        """Tell whether a thread block has room for a tile, and its threads have enough to load."""
        given, count = self.given, tile.threads * tile.rows
        if (
            not fits_block(tile.threads, tile.rows)
            or count * (given.blocks or 1) > THREADS_PER_SM
            or (tile.cluster > 1 and tile.threads % THREADS_PER_WARP)
            or (tile.unroll > 1 and not _is_alone(tile))
            or least > min(REGISTERS_PER_THREAD, REGISTERS_PER_SM // count)
        ):
            return False
        wide = tile.threads * tile.cluster  # half of which would have nothing to load
        wide_idle = wide > SIZES[0] and wide // 2 * tile.vector >= self.work.columns
        idle = tile.chunks == 1 and wide_idle
        return given.threads is not None or not (tile.chunks > MOST_CHUNKS or idle)

    def _splits(self, tile: RegisterTile) -> bool:
        """Tell rows so few that SMs without one may reduce them, too, and store a part."""
        work = self.work
        free = work.rows is not None and work.rows * tile.chunks <= self.model.chip.num_sms
        whole = tile.columns == work.columns and tile.rows == tile.cluster == 1
        return work.splits and free and whole and tile.chunks > 1 and self.given.reload is None

    # -- rows that are streamed -------------------------------------------------------------------

    @property
    def passes_once(self) -> bool:
        """Whether rows are long and nothing has to wait: they stream as fast as memory goes."""
        work = self.work
        parts = -(-work.columns // (work.vector * self._stream_chunks * STREAM_THREADS[0]))
        return work.passes == 1 and parts >= FEWEST_PARTS and self.given.is_open

    @property
    def _stream_chunks(self) -> int:
        return max(1, STREAM_BYTES // (self.work.vector * max(self.work.loaded, 1)))

    @property
    def _stream_cluster(self) -> int:
        """Return the thread blocks that share a row: several where rows leave SMs without one."""
        work, chip = self.work, self.model.chip
        if not (self.passes_once and self.is_few and has_clusters()):
            return 1
        wanted = -(-FEW_STREAM_BLOCKS * chip.num_sms // (work.rows or 1))
        parts = work.columns // (work.vector * STREAM_THREADS[0])  # a vector of each thread
        most = MOST_ROW_CLUSTER if chip.holds_clusters(MOST_ROW_CLUSTER) else CLUSTERS[-1]
        return largest_power(max(1, min(wanted, parts, most)))

    def _stream_threads(self, chunks: int, columns: int) -> int:
        """Return many threads of few rows where L2 has to keep them, else fewer that end apart."""
        if self.work.passes > 1:
            return MAX_THREADS
        most = columns // (chunks * self.work.vector * FEWEST_PARTS)
        return max((x for x in STREAM_THREADS if x <= most), default=STREAM_THREADS[0])

    @property
    def streamed(self) -> RowChoice:
        """The choice for rows that no thread block holds, nor loads at once."""
        work, given = self.work, self.given
        chunks, cluster = given.chunks or self._stream_chunks, given.cluster or self._stream_cluster
        if cluster > 1 and given.chunks is None:
            chunks = chunks * FEW_STREAM_BYTES // STREAM_BYTES
        threads, rows = given.threads or MAX_THREADS, given.rows or 1
        if given.threads is None:
            room = min(MAX_THREADS, THREADS_PER_SM // (given.blocks or 1)) // rows
            threads = _round_threads(
                min(self._stream_threads(chunks, work.columns // cluster), room)
            )
        elif given.rows is None:
            rows = max(1, THREADS_PER_WARP // threads)
        chunks = min(chunks, -(-work.columns // (work.vector * threads * cluster)))
        tile = RegisterTile(threads, work.vector, chunks, rows, cluster, work.shift)
        most = min(THREADS_PER_SM // (threads * tile.rows), MOST_BLOCKS_PER_SM)
        flight = tile.rows * tile.columns // cluster * work.loaded
        blocks = given.blocks or max(1, min(self.model.enough_blocks(flight), most))
        hint = bool(given.hint)  # lines that the second pass wants leave no room for others
        speed = self.model.streamed_rate(work.passes)
        choice = RowChoice(tile, False, True, False, blocks, hint, speed)
        return replace(choice, is_streamed=True)

    # -- the order of all of them -----------------------------------------------------------------

    def order(self, choice: RowChoice, best: float) -> tuple[float, ...]:
        """Sort the fastest first, those as fast by their size.

        Where SMs have a row or none, nothing hides a latency: many threads load few vectors each.
        """
        tile, work = choice.tile, self.work
        if self.is_few and choice.stage:
            few = order_few_staged(choice, work, self.model)
            return (choice.reload, choice.recompute, *few)
        if self.is_few:
            return self._order_few(choice)
        group = 0.0 if choice.rate >= SAME_RATE * best else best - choice.rate
        if choice.stage:
            return (group, *order_staged(choice, work), 0, 0, 0)
        threads = max(tile.threads * tile.rows, FEWEST_THREADS)
        together = tile.rows > 1 and tile.threads > THREADS_PER_WARP  # rows wait for one another
        at_once = tile.vector * max(work.loaded, 1)
        best_bytes = BEST_LIGHT_BYTES if work.is_light or work.is_pair else BYTES_PER_THREAD
        best_bytes = BEST_CLOSE_BYTES if is_close(work, tile) else best_bytes
        wanted_bytes = at_once if work.columns <= tile.vector * THREADS_PER_WARP else best_bytes
        off = abs(log2(tile.chunks * at_once / wanted_bytes))
        few_bytes = tile.threads <= THREADS_PER_WARP and tile.chunks * at_once <= BYTES_PER_THREAD
        early = few_bytes and work.reductions > 1  # no barrier hides the load
        late = choice.preload != early
        return (group, choice.reload, together, off, threads, choice.recompute, late)

    def _order_few(self, choice: RowChoice) -> tuple[float, ...]:
        tile, work = choice.tile, self.work
        enough = tile.vector * FEWEST_THREADS
        rows = (work.rows or 0) * SMS_PER_SPLIT_ROW
        fewest = work.splits and rows <= self.model.chip.num_sms
        sizes = (MAX_CHUNKS_SPLIT_ROWS, MAX_CHUNKS_FEW_ROWS) if fewest else (MAX_CHUNKS_FEW_ROWS,)
        wanted = next((x for x in sizes if work.columns >= x * enough), 1)
        off = abs(log2(tile.chunks / wanted))
        waste = tile.columns * tile.rows
        late = not choice.preload
        return (choice.reload, choice.recompute, off, late, waste, tile.threads)

    def describe(self, choice: RowChoice) -> str:
        """Describe a choice for `explain`."""
        tile, work = choice.tile, self.work
        rows = f", {tile.block_rows} rows a thread block" if tile.block_rows > 1 else ""
        rows += f", {tile.unroll} of a thread" if tile.unroll > 1 else ""
        early = ", what rows share first" if work.shared and choice.preload else ""
        again = ", exponentials and the like twice" if work.kept and choice.recompute else ""
        again += ", rows loaded twice" if choice.reload else ""
        passes = "from shared memory" if choice.stage else "in parts"
        again += f", rows loaded {passes} by each pass" if choice.is_streamed else ""
        again += f", {tile.chunks} thread blocks a row, each stores a part" if choice.split else ""
        share = f"{100 * choice.rate / self.model.loaded_bytes:.0f}% of memory"
        part = f" in each of {tile.cluster} thread blocks of a cluster" if tile.cluster > 1 else ""
        text = f"{tile.threads} threads a row{part}, {tile.chunks} vectors of {tile.vector} each"
        room = f", {choice.blocks} thread blocks an SM" if choice.blocks > 1 else ""
        return f"{text}{rows}{early}{again}{room} ({share})"


def _is_alone(tile: RegisterTile) -> bool:
    """Tell rows of a warp or a part of one, which wait for nothing and begin with a vector."""
    return tile.threads <= THREADS_PER_WARP and tile.cluster == 1 and not tile.shift


def _round_threads(most: int) -> int:
    """Return the most threads that can share a row: whole warps, or an equal part of one."""
    if most >= THREADS_PER_WARP:
        return most // THREADS_PER_WARP * THREADS_PER_WARP
    return largest_power(max(1, most))
