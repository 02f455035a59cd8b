"""Choose the configuration of a persistent row kernel with column sums.

Its currency is bytes in flight on an SM, as for other kernels over rows: those that thread blocks
load at once, and those of later rows that are on their way to L2. Registers bound the former: a
thread holds its part of a row, and of the sums. Where they leave room for little, memory is asked
for rows in advance; more in flight than memory can use only gets in its own way
(docs/memory_bound.md).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.errors import ScheduleError, cannot_schedule
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.schedule.memory_bound.arrays import Read
from tvm_hopper.schedule.memory_bound.estimate import (
    LONG_BYTES,
    MemoryModel,
    has_clusters,
    model_of_target,
)
from tvm_hopper.schedule.memory_bound.nests import in_memory
from tvm_hopper.schedule.memory_bound.program import Part
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile, sum_bytes, whole_vector
from tvm_hopper.schedule.memory_bound.work import PersistentWork

from .choice import CLUSTERS
from .config import THREADS_PER_SM, RowReductionConfig, fits_block
from .occupancy import REGISTERS_PER_SM
from .persistent import Persistent
from .recognize import RowProgram

# Registers of a thread next to its parts of rows and sums; if the user names the threads; and that
# may be needed: above, the compiler runs out of the 255 there are.
BASE_REGISTERS, LEAST_REGISTERS, MOST_REGISTERS = 36, 16, 224
MOST_BLOCKS_PER_SM = 8
FEWEST_THREADS = 128  # of a thread block
BULK_BYTES = 16  # of which bulk copies bring multiples
SHARED_BYTES = 220 << 10  # of an SM, for rows that wait
SLOTS, SKEWED_SLOTS = 2, 3  # of shared memory for rows, next to those of rows on their way
MOST_STAGED = 6  # rows of a thread block on their way to shared memory
MOST_AHEAD = 2  # rows of a thread block on their way to L2
SIZES = (32, 64, 128, 256, 384, 512, 768, 1024)
RUNNERS_UP = 2  # that `explain` shows


def find_work(
    sch: s_tir.Schedule,
    own: list[Part],
    sums: list[Part],
    program: RowProgram,
    reads: list[Read],
    given: RowReductionConfig,
) -> PersistentWork:
    """Count what a program of rows with sums of columns does to a row.

    - `own`, `sums`: what is computed of rows, and the sums of columns.
    - raises ScheduleError: the vectors requested do not fit the rows.
    """
    tensors = [*(x.tensor for x in reads), *in_memory(sch, own, program.full)]
    where = f" for rows of {program.columns} elements"
    count = [ir.static_int(x) for x in program.rows]
    loaded = sum_bytes(x.tensor for x in reads if x.has_rows)
    shared = sum_bytes(x.tensor for x in reads if not x.has_rows)
    summed = sum_bytes(x for p in sums for x in p.outputs)
    return PersistentWork(
        rows=None if None in count else prod(x or 0 for x in count),
        columns=program.columns,
        vector=whole_vector("RowReductionConfig", where, program.columns, tensors, given.vector),
        loaded=loaded,
        held=loaded + shared + summed,
        moved=loaded + sum_bytes(in_memory(sch, own, program.full)),
        sums=sum(len(p.outputs) for p in sums),
        narrow=min(dtype_bytes(ir.dtype_of(x.tensor)) for x in reads if x.has_rows),
    )


def choose_persistent(
    where: str, work: PersistentWork, given: RowReductionConfig, model: MemoryModel | None = None
) -> Persistent:
    """Choose what a configuration leaves open.

    - `where`: names the program in an error message.
    - `model`: what a chip does; None: that of the target in scope.
    - raises ScheduleError: a row and its sums do not fit into the registers of a thread block.
    """
    search = _PersistentSearch(work, given, model or model_of_target())
    found = search.candidates()
    few = (given.persistent or 1) * (given.rows or 1)
    if not found and work.rows is not None and work.rows < few:
        raise cannot_schedule(
            where,
            f"{work.rows} rows for {given.persistent or 1} thread blocks of {given.rows or 1}",
            "a row for each of them, or more",
        )
    if not found:
        raise _no_room(where, work, given)
    found.sort(key=search.order)
    texts = [x.text for x in found[: 1 + RUNNERS_UP]]
    return replace(found[0], text="; then ".join(texts))


def _no_room(where: str, work: PersistentWork, given: RowReductionConfig) -> ScheduleError:
    """Raise the error that the requested values, or else the rows, do not fit."""
    cluster = _clusters(given)[-1]
    most = (REGISTERS_PER_SM // MAX_THREADS - BASE_REGISTERS) * 4 // work.held * MAX_THREADS
    most *= cluster
    values = {x.name: getattr(given, x.name) for x in fields(given)}
    asked = [f"{name}={x}" for name, x in values.items() if x is not None and name != "persistent"]
    if asked and work.columns <= most:
        return cannot_schedule(
            where,
            f"{', '.join(asked)} for rows of {work.columns} elements in a persistent kernel",
            "values that go together: in a cluster two vectors of a thread or more, and whole "
            "ones of 16 bytes and one row of each thread block if staged",
            "leave some of them open",
        )
    beside = "sums of columns" if work.sums else "what all rows share"
    fix = "compute the sums in a separate function, by hs.column_reduction"
    return cannot_schedule(
        where,
        f"rows of {work.columns} elements next to {beside}, {work.held} register bytes for each",
        f"rows that fit the registers of a thread block, or of {cluster} in a cluster: about "
        f"{most} elements of these types",
        fix if work.sums else "leave persistent= out",
    )


@dataclass(frozen=True)
class _Way:
    """Whether rows wait in shared memory, whether they are loaded twice, and who shares a row."""

    stage: bool
    reload: bool
    cluster: int
    threads: int
    rows: int  # of a thread block


@dataclass(frozen=True)
class _PersistentSearch:
    """The configurations of a persistent kernel that are legal, and their order."""

    work: PersistentWork
    given: RowReductionConfig
    model: MemoryModel

    def order(self, choice: Persistent) -> float:
        """Sort by the rate, the fastest first."""
        return -self.model.persistent_rate(
            self.work, choice.tile, choice.on_one, choice.ahead, choice.is_staged
        )

    def candidates(self) -> list[Persistent]:
        """List the configurations that are legal."""
        found = []
        for way in self._ways():
            most = self._room(way)
            count = most if self.given.persistent is None else self._asked(way.cluster, most)
            first = 1 if self.given.persistent is None else count
            for on_one in range(max(1, first), count + 1):
                choice = self._candidate(way, on_one)
                found += [] if choice is None else [choice]
        return found

    def _ways(self) -> list[_Way]:
        given = self.given
        staged = (False, True) if given.stage is None else (given.stage,)
        if given.stage is None and (given.ahead == 0 or not has_clusters()):
            staged = (False,)
        reloads = (True, False) if given.reload is None else (given.reload,)
        sizes = SIZES if given.threads is None else (given.threads,)
        return [
            _Way(stage, reload, cluster, threads, self._rows(stage, threads))
            for stage, reload in product(staged, reloads)
            if stage or not reload or given.reload
            for cluster, threads in product(_clusters(given), sizes)
        ]

    def _rows(self, stage: bool, threads: int) -> int:
        given, count = self.given.rows, self.work.rows
        rows = given or (1 if stage else max(1, FEWEST_THREADS // threads))
        return 1 if count is not None and given is None and count < rows else rows

    def _asked(self, cluster: int, most: int) -> int:
        """Return the thread blocks on an SM, where a configuration says how many there are."""
        return min(most, -(-(self.given.persistent or 1) * cluster // self.model.chip.num_sms))

    def _chunks(self, way: _Way) -> int:
        """Return the vectors of a thread."""
        return -(-self.work.columns // (self.work.vector * way.threads * way.cluster))

    def _room(self, way: _Way) -> int:
        """Return the thread blocks that an SM has room for."""
        work, chunks, count = self.work, self._chunks(way), way.threads * way.rows
        base = BASE_REGISTERS if self.given.threads is None else LEAST_REGISTERS
        held = chunks * work.vector * work.held
        if way.reload:  # one vector of a row at a time
            held -= (chunks - 1) * work.vector * work.loaded
        need = base + -(-held // 4)
        if need > MOST_REGISTERS or (way.cluster > 1 and way.threads % THREADS_PER_WARP):
            return 0
        return min(REGISTERS_PER_SM // (need * count), THREADS_PER_SM // count, MOST_BLOCKS_PER_SM)

    def _candidate(self, way: _Way, on_one: int) -> Persistent | None:
        work, given, cluster, rows = self.work, self.given, way.cluster, way.rows
        tile = RegisterTile(way.threads, work.vector, self._chunks(way), rows, cluster)
        row = work.columns * work.loaded * rows // cluster
        skewed = way.stage and way.reload and cluster > 1 and not work.sums
        slots = SKEWED_SLOTS if skewed else SLOTS
        ahead = self._ahead(way, on_one, row, slots)
        if not self._is_legal(way, tile, row) or (
            way.stage and (ahead < 1 or (ahead + slots) * on_one * row > SHARED_BYTES)
        ):
            return None
        blocks = max(1, on_one * self.model.sms_for(cluster) // cluster)
        if work.rows is not None:
            blocks = max(1, min(blocks, work.rows // rows))  # a partial sum of no row is none
        blocks = given.persistent or blocks
        # registers for no more than there are
        on_one = min(on_one, -(-blocks * cluster // self.model.chip.num_sms))
        hint = way.stage and self.model.wants_hint(work) if given.hint is None else given.hint
        what = f"clusters of {cluster} thread blocks" if cluster > 1 else "thread blocks"
        where = " in shared memory" if way.stage else ""
        text = (
            f"{way.threads} threads a row, {tile.chunks} vectors of {work.vector} each, "
            f"{rows} rows a thread block, {blocks} {what}, {on_one} on an SM: "
            f"{on_one * row >> 10} KiB of it in flight, {ahead} times as much ahead{where}"
        )
        return Persistent(tile, blocks, on_one, ahead, text, way.stage, way.reload, hint, skewed)

    def _is_legal(self, way: _Way, tile: RegisterTile, row: int) -> bool:
        """Tell whether a thread block may have a tile, of which it loads so many bytes."""
        work, given = self.work, self.given
        if not fits_block(way.threads, way.rows):
            return False
        if work.rows is not None and work.rows < (given.persistent or 1) * way.rows:
            return False
        wide = way.threads * way.cluster
        idle = wide > SIZES[0] and wide // 2 * work.vector >= work.columns
        if given.threads is None and tile.chunks == 1 and (idle or way.cluster > 1):
            return False  # half of the threads would have nothing to load, or a cluster too little
        if way.reload and given.reload is None and row < LONG_BYTES:
            return False  # registers have room for it
        return not way.stage or _fits_slots(work, tile)

    def _ahead(self, way: _Way, on_one: int, row: int, slots: int) -> int:
        """Return the number of rows to prefetch per thread block."""
        rates, resident = self.model.rates, on_one * row
        if self.given.ahead is not None:
            return self.given.ahead
        if way.stage:
            most = max(1, self.model.flight(rates.staged_bytes) // resident)
            return min(SHARED_BYTES // resident - slots, most, MOST_STAGED)
        most = self.model.flight(rates.prefetched_bytes) // resident - 1
        return min(MOST_AHEAD, max(0, most, int(on_one == 1)))


def _clusters(given: RowReductionConfig) -> tuple[int, ...]:
    if given.cluster is not None:
        return (given.cluster,)
    return CLUSTERS if has_clusters() else CLUSTERS[:1]


def _fits_slots(work: PersistentWork, tile: RegisterTile) -> bool:
    """Tell whether bulk copies bring the parts of a row that thread blocks have."""
    part = work.columns // tile.cluster
    whole = tile.cluster == 1 or tile.columns == work.columns
    return whole and tile.rows == 1 and part * work.narrow % BULK_BYTES == 0
