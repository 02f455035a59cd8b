"""Persistent row kernels that also sum columns: gradients of norms.

  DX[i, j] = f(X[i, j], DY[i, j], C[i], W[j])       C[i] a sum of a row
  DW[j] += DY[i, j] * X[i, j]
->
  blockIdx.x            parts of the rows
    threadIdx.y         rows of a thread block
      load W            stays in registers
      for rows of the part:
        load X, DY      vectors: threadIdx.x
        C = sum         of registers, then across the row's threads
        DX = f          stored
        DW_part += DY * X     in registers: a thread has the same columns of all rows
      partial[j, part] = DW_part
  blockIdx.x            rows of `partial`, a kernel of row reductions
    DW[j] = sum(partial[j, :]), in a fixed order

Each tensor is read from memory once. `partial` belongs to the built function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tvm import s_tir

from tvm_hopper.requests import keys
from tvm_hopper.schedule.memory_bound.arrays import find_reads, keep_output, keep_read, load_again
from tvm_hopper.schedule.memory_bound.nests import one_thread
from tvm_hopper.schedule.memory_bound.partial import leave_partial, pack_partial
from tvm_hopper.schedule.memory_bound.program import Part, is_column_sum, results
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile, deal_out, lay_out, lay_out_rows

from .choice import config_of
from .config import RowReductionConfig, of_partial
from .recognize import RowProgram


@dataclass(frozen=True)
class Persistent:
    """Plan of a persistent kernel: register tile, thread blocks, notes."""

    tile: RegisterTile
    blocks: int  # or clusters of them
    on_one: int  # thread blocks on an SM
    ahead: int  # rows of a thread block that are brought into L2 in advance
    text: str
    is_staged: bool = False  # into shared memory instead
    reload: bool = False  # a row is loaded a second time after the reduction
    hint: bool = False  # L2 evicts last what is loaded of rows
    is_skewed: bool = False  # the next row is reduced before this one waits for its cluster

    @property
    def parts(self) -> int:
        """Partial results of a column."""
        return self.blocks * self.tile.rows

    @property
    def config(self) -> RowReductionConfig:
        """The same as a request: a schedule with it is this one."""
        return replace(
            config_of(self.tile),
            persistent=self.blocks,
            ahead=self.ahead,
            stage=self.is_staged,
            reload=self.reload,
            hint=self.hint,
        )


def split_program(parts: list[Part]) -> tuple[list[Part], list[Part]]:
    """Return what is computed of rows, and the sums of columns; what reads those is neither."""
    sums = [p for p in parts if is_column_sum(p)]
    made = [x for p in sums for x in p.outputs]
    own = []
    for part in parts:
        if any(part is x for x in sums):
            continue
        if any(x.source.same_as(y) for x in part.loads for y in made):
            made += part.outputs
        else:
            own.append(part)
    return own, sums


def schedule_persistent(
    sch: s_tir.Schedule,
    own: list[Part],
    sums: list[Part],
    program: RowProgram,
    choice: Persistent,
    second: Callable[[s_tir.Schedule, RowReductionConfig, frozenset[str]], RowReductionConfig],
) -> None:
    """Make a persistent kernel of rows and partial sums of columns, and one of the rest.

    - `own`: what is computed of rows, inlined.
    - `second`: schedules the blocks of the function but for those that it is told: `schedule_rows`.
    """
    reads = find_reads(sch, [*own, *sums], program.full)
    if choice.reload:
        reads = load_again(reads, own)
    partial = [leave_partial(sch, part, choice.parts) for part in sums]
    for block in partial:  # TVM binds no loop of a block that reads rows after their end, later
        column, trip, share = sch.get_loops(block)
        sch.reorder(share, trip, column)
        deal_out(sch, column, choice.tile, whole=False)
    other = {p.name for p in own} | {str(sch.get(x).name_hint) for x in partial}
    if sums:
        second(sch, of_partial(choice.tile.vector, choice.parts), frozenset(other))

    of_sums = {p.name: replace(p, block=x) for p, x in zip(sums, partial, strict=True)}
    _share_rows(sch, own, partial, program, choice)
    for part in own:
        if part.reduced or part.name in program.full:
            deal_out(sch, list(sch.get_loops(part.block))[-1], choice.tile, whole=False)
    place = _RowPlace(sch, own[0].block, choice.tile)
    _keep_results(place, own, program)
    for read in reads:
        readers = tuple(of_sums.get(p.name, p) for p in read.readers)
        kept = keep_read(sch, replace(read, readers=readers))
        if choice.hint and read.has_rows:
            sch.annotate(kept, keys.LOAD_HINT, "evict_last")
        place.load(kept, read.has_rows)
    for block in partial:
        place.store_sums(block)


def _share_rows(
    sch: s_tir.Schedule,
    own: list[Part],
    partial: list[Any],
    program: RowProgram,
    choice: Persistent,
) -> None:
    """Deal the rows out to thread blocks; all nests share the loops over them."""
    trips = [list(sch.get_loops(block))[1] for block in partial]
    for part in own:
        loops = list(sch.get_loops(part.block))
        rows = loops[:-1] if part.reduced or part.name in program.full else loops
        row = rows[0] if len(rows) == 1 else sch.fuse(*rows)
        trip, share = sch.split(row, [None, choice.parts])
        sch.reorder(share, trip)
        trips.append(trip)
    trip = sch.merge(*trips)
    if choice.ahead:
        key = keys.STAGE_ROWS if choice.is_staged else keys.PREFETCH_ROWS
        sch.annotate(trip, key, choice.ahead)
    if choice.is_skewed:
        sch.annotate(trip, keys.SKEW_TURNS, 1)
    share = next(iter(sch.get_loops(own[0].block)))
    grid, below = sch.split(share, [choice.blocks, choice.tile.rows])
    sch.bind(grid, "blockIdx.x")
    sch.bind(below, "threadIdx.y")
    sch.annotate(grid, keys.MEMORY_BOUND, keys.ROW_REDUCTION)
    sch.annotate(grid, keys.CHOSEN, choice.text)
    sch.annotate(grid, keys.BLOCKS_PER_SM, choice.on_one)
    if choice.tile.cluster > 1:
        sch.annotate(grid, keys.ROW_CLUSTER, choice.tile.cluster)


def _keep_results(place: _RowPlace, own: list[Part], program: RowProgram) -> None:
    """Let results wait in registers; store those that are outputs."""
    sch = place.sch
    outputs = results(sch, own)
    for part in own:
        full = part.name in program.full
        for number, buffer in enumerate(part.outputs):
            if not any(buffer.same_as(x) for x in outputs):
                sch.set_scope(part.block, number, "local")
                continue
            readers = [p for p in own if any(x.source.same_as(buffer) for x in p.loads)]
            place.store(keep_output(sch, part, number, readers), full)
        if full:
            lay_out(sch, part.block, place.tile, 1)
        else:
            lay_out_rows(sch, part.block)


@dataclass(frozen=True)
class _RowPlace:
    """Where loads and stores of a persistent kernel go: around its loop over rows, and inside."""

    sch: s_tir.Schedule
    block: Any  # one inside of both loops
    tile: RegisterTile

    @property
    def thread(self) -> Any:
        """The loop around that over rows."""
        return list(self.sch.get_loops(self.block))[1]

    @property
    def trip(self) -> Any:
        """The loop over rows."""
        return list(self.sch.get_loops(self.block))[2]

    def load(self, block: Any, has_rows: bool) -> None:
        """Load a tensor before what reads it, or what all rows share before them."""
        if has_rows:
            self.sch.compute_at(block, self.trip)
        else:
            self.sch.compute_at(block, self.thread, index=0)
        lay_out(self.sch, block, self.tile, 1)
        deal_out(self.sch, list(self.sch.get_loops(block))[-1], self.tile, whole=True)

    def store(self, block: Any, full: bool) -> None:
        """Store a result of a row after what computes it."""
        self.sch.reverse_compute_at(block, self.trip)
        if full:
            deal_out(self.sch, list(self.sch.get_loops(block))[-1], self.tile, whole=True)
        else:
            one_thread(self.sch, block, self.tile)

    def store_sums(self, block: Any) -> None:
        """Keep sums of columns in registers, and store them after the last row."""
        whole, vector = self.tile.threads * self.tile.vector, self.tile.vector
        store = self.sch.cache_write(block, 0, "local")

        def index(*i: Any) -> list[Any]:
            column = i[0]
            return [i[-1], column // whole, column % whole // vector, column % vector]

        self.sch.transform_layout(block, ("write", 0), index, assume_injective_transform=True)
        self.sch.reverse_compute_at(store, self.thread)
        deal_out(self.sch, list(self.sch.get_loops(store))[-1], self.tile, whole=True)
        pack_partial(self.sch, store, vector)
