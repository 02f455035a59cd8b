"""One kernel for a program of columns: elements in registers, partial results in shared memory.

  M[i, j] = max of X[i, k, j]                Y[i, k, j] = f(X[i, k, j], M[i, j])
->
  blockIdx.x            one i, and a strip of neighbouring columns
    load X              vectors along j: threadIdx.x; rows k: threadIdx.y, several of a thread
    own = max of X      a thread's rows
    partial[ty, j] = own                     in shared memory
    M = max of partial[.., j]                by each thread, of its own columns
    Y = f(X, M)         in registers
    store Y

Columns with more rows than registers hold are loaded by each reduction, and by what is stored, in
iterations: again out of L2, if it still has them. Thread blocks may share the rows of a strip: each
leaves its result in memory then, and a kernel after this one combines them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import s_tir
from tvm.tirx import IndexMap

from tvm_hopper import ir
from tvm_hopper.schedule.memory_bound.arrays import Read, keep_output, keep_read
from tvm_hopper.schedule.memory_bound.nests import merge
from tvm_hopper.schedule.memory_bound.program import Part, results
from tvm_hopper.schedule.memory_bound.tiles import flat, zero_of

from .recognize_strips import Kind, StripProgram

ROWS_COMBINED_BY_EACH = 8  # of threads: each thread reads what all of them left of its columns
GROUPS = 4  # of more of them, of which each is combined before


@dataclass(frozen=True)
class StripTile:
    """Distribution of a strip of columns over thread blocks and their threads."""

    threads: int  # side by side
    rows: int  # below one another
    vector: int  # columns of a thread
    flight: int  # rows of a thread that it loads at once
    trips: int = 1  # iterations; of one, it keeps all its rows in registers
    blocks: int = 1  # thread blocks that share the rows of a strip

    @property
    def width(self) -> int:
        """Columns of the strip."""
        return self.threads * self.vector


class StripKernel:
    """Makes one kernel of blocks of a program."""

    def __init__(self, sch: s_tir.Schedule, program: StripProgram, tile: StripTile) -> None:
        self.sch, self.program, self.tile = sch, program, tile
        self.grid: list[Any] = []  # the loop over thread blocks of each nest, in order

    def schedule(self, parts: list[Part], reads: list[Read], columns: list[Read]) -> Any:
        """Schedule blocks; return the loop over thread blocks.

        - `reads`, `columns`: tensors that have a value for each element, and for each column.
        """
        sch, outputs = self.sch, results(self.sch, parts)
        stores: dict[str, list[Any]] = {}
        for part in parts:
            stores[part.name] = []
            shares = self.tile.blocks > 1 and part.reduced  # its results are another kernel's
            for number, buffer in enumerate(part.outputs if not shares else ()):
                if any(buffer.same_as(x) for x in outputs):
                    readers = [p for p in parts if any(x.source.same_as(buffer) for x in p.loads)]
                    stores[part.name].append(keep_output(sch, part, number, readers))
                else:
                    sch.set_scope(part.block, number, "local")
        of_columns = [keep_read(sch, x) for x in columns]
        for load in of_columns:
            self._number(load, self._sizes(Kind.COLUMN))
            self._flatten(load, self._sizes(Kind.COLUMN))
        inside = self._load(reads)
        for part in parts:
            if self.program.kinds[part.name] is Kind.ELEMENT:
                self._compute_elements(part, inside[part.name], stores[part.name])
                continue
            if part.reduced:
                stores[part.name] += self._reduce(part, inside[part.name])
            else:
                self._number(part.block, self._sizes(Kind.COLUMN))
                self._deal_out_columns(part.block)
                self._flatten(part.block, self._sizes(Kind.COLUMN))
                self._lay_out(part.block, Kind.COLUMN)
            for store in stores[part.name]:
                self._number(store, self._sizes(Kind.REDUCTION if part.reduced else Kind.COLUMN))
                self._deal_out_columns(store, whole=True, once=True)
        block = merge(sch, self.grid)
        for load in of_columns:
            sch.compute_at(load, block, preserve_unit_loops=True, index=0)
            *_, column = list(sch.get_loops(load))
            _, thread, element = sch.split(column, [None, self.tile.threads, self.tile.vector])
            sch.bind(thread, "threadIdx.x")
            self._unroll(None, element, whole=True)
            self._lay_out(load, Kind.COLUMN)
        sch.bind(block, "blockIdx.x")
        return block

    # -- what is loaded, computed and stored for each element -------------------------------------

    def _load(self, reads: list[Read]) -> dict[str, list[Any]]:
        """Load tensors to registers before all blocks, or return what each block loads itself."""
        inside: dict[str, list[Any]] = {name: [] for name in self.program.kinds}
        for read in reads:
            once = self.tile.trips == 1
            for readers in [read.readers] if once else [(x,) for x in read.readers]:
                block = keep_read(self.sch, replace(read, readers=readers))
                self._number(block, self._sizes(Kind.ELEMENT))
                self._flatten(block, self._sizes(Kind.ELEMENT))
                if once:
                    self._deal_out(block, whole=True)
                    self._lay_out(block, Kind.ELEMENT)
                else:
                    inside[readers[0].name].append(block)
        return inside

    def _compute_elements(self, part: Part, loads: list[Any], stores: list[Any]) -> None:
        sizes = self._sizes(Kind.ELEMENT)
        for block in (part.block, *stores):
            self._number(block, sizes)
        self._flatten(part.block, sizes)
        trip = self._deal_out(part.block, whole=False)
        for load in loads:
            self.sch.compute_at(load, trip, preserve_unit_loops=True)
            self._deal_out_inside(load, in_thread=False)
            self._lay_out(load, Kind.ELEMENT)
        self._lay_out(part.block, Kind.ELEMENT)
        for store in stores:
            if self.tile.trips == 1:
                self._deal_out(store, whole=True)
            else:
                self.sch.reverse_compute_at(store, trip, preserve_unit_loops=True)
                self._deal_out_inside(store, in_thread=False)

    def _deal_out(self, block: Any, *, whole: bool) -> Any:
        """Split the loops over elements; return the one over iterations."""
        sch, tile = self.sch, self.tile
        outer, row, column = list(sch.get_loops(block))
        part, trip, flight, below = self._split_rows(row)
        strip, thread, element = sch.split(column, [None, tile.threads, tile.vector])
        sch.reorder(outer, strip, part, trip, flight, below, thread, element)
        self.grid.append(sch.fuse(outer, strip, part))
        sch.bind(below, "threadIdx.y")
        sch.bind(thread, "threadIdx.x")
        self._unroll(flight, element, whole=whole)
        return trip

    def _split_rows(self, row: Any) -> list[Any]:
        """Split the loop over rows: thread blocks, iterations, rows of a thread, threads."""
        tile = self.tile
        trips = None if tile.blocks == 1 else tile.trips
        factors = [None if trips else 1, trips, tile.flight, tile.rows]
        return list(self.sch.split(row, factors))

    def _deal_out_inside(self, block: Any, *, in_thread: bool) -> None:
        """Split loops over elements of an iteration, of all threads or in a thread's columns."""
        sch, tile = self.sch, self.tile
        *_, row, column = list(sch.get_loops(block))
        flight, below = sch.split(row, [None, tile.rows])
        sch.bind(below, "threadIdx.y")
        if not in_thread:
            _, thread, column = sch.split(column, [None, tile.threads, tile.vector])
            sch.bind(thread, "threadIdx.x")
        self._unroll(flight, column, whole=True)

    def _unroll(self, flight: Any, element: Any, *, whole: bool) -> None:
        """Unroll a thread's rows; its columns are a vector, or unrolled as well."""
        if flight is not None:
            self.sch.unroll(flight)
        if whole and self.tile.vector > 1:
            self.sch.vectorize(element)
        else:
            self.sch.unroll(element)

    # -- columns ----------------------------------------------------------------------------------

    def _reduce(self, part: Part, loads: list[Any]) -> list[Any]:
        """Reduce each thread's rows, and what threads have left; return what goes to memory."""
        sch, tile, block = self.sch, self.tile, part.block
        stores = []
        if tile.blocks > 1:
            count = len(sch.get(block).writes)
            stores = [sch.cache_write(block, i, "local") for i in range(count)]
        else:
            self._split_reduction(block)
        own = block
        if tile.rows > 1:
            *_, below = sch.get_loops(block)
            own = self._leave_partial(block, below)
        self._reduce_own(own, loads, self._keep_partial(own) if tile.rows > 1 else [])
        if tile.rows > ROWS_COMBINED_BY_EACH:
            *_, below = sch.get_loops(block)
            group, _ = sch.split(below, [GROUPS, None])
            groups = self._leave_partial(block, group)
            self._combine_groups(groups, self._keep_partial(groups))
        if tile.rows > 1:
            outer, column, *share, below = list(sch.get_loops(block))
            strip, thread, element = sch.split(column, [None, tile.threads, tile.vector])
            sch.reorder(outer, strip, *share, thread, below, element)
            self.grid.append(sch.fuse(outer, strip, *share))
            sch.bind(thread, "threadIdx.x")
            self._unroll(below, element, whole=False)
        self._flatten(block, self._sizes(Kind.REDUCTION))
        self._lay_out(block, Kind.REDUCTION)
        return stores

    def share(self, part: Part) -> Part:
        """Split a reduction between thread blocks; return what each of them does.

        The block of the part combines their results, as one of a separate program.
        """
        sch = self.sch
        share, *_ = self._split_reduction(part.block)
        block = self._leave_partial(part.block, share)
        self._spread(part.block)
        for number, buffer in enumerate(part.outputs):
            index = self._by_share(list(buffer.shape))
            sch.transform_layout(block, ("write", number), index)
        return replace(part, block=block)

    def _split_reduction(self, block: Any) -> list[Any]:
        self._number(block, [*self._sizes(Kind.COLUMN), len(self.program.reduced)])
        *_, row = list(self.sch.get_loops(block))
        return self._split_rows(row)

    def _leave_partial(self, block: Any, loop: Any) -> Any:
        """Let each iteration of a loop have its result; the block combines them."""
        sch = self.sch
        partial = sch.rfactor(loop, len(sch.get(block).writes[0].source.shape))
        count = len(sch.get(block).iter_vars)
        sch.reorder_block_iter_var(block, [*range(1, count), 0])  # TVM puts what is left in front
        return partial

    def _spread(self, block: Any) -> None:
        """Let a block that combines what thread blocks left count columns as its result does."""
        axes, program = list(self.sch.get(block).iter_vars), self.program

        def index(outer: Any, column: Any, share: Any) -> list[Any]:
            return [*_unflat(outer, program.outer), *_unflat(column, program.kept), share]

        dtype = ir.dtype_of(axes[0].var)
        self.sch.transform_block_layout(block, IndexMap.from_func(index, index_dtype=dtype))

    def _reduce_own(self, block: Any, loads: list[Any], stores: list[Any]) -> None:
        """Reduce the rows of each thread."""
        sch, tile = self.sch, self.tile
        outer, column, share, trip, flight, below = list(sch.get_loops(block))
        strip, thread, element = sch.split(column, [None, tile.threads, tile.vector])
        # Threads below one another are inside of an iteration: what it loads is whole rows then.
        sch.reorder(outer, strip, share, thread, trip, below, flight, element)
        self.grid.append(
            sch.fuse(outer, strip, share) if tile.blocks > 1 else sch.fuse(outer, strip)
        )
        for store in stores:
            sch.reverse_compute_at(store, thread, preserve_unit_loops=True)
            columns, row = list(sch.get_loops(store))[-2:]
            sch.reorder(row, columns)
            sch.bind(row, "threadIdx.y")
            self._unroll(None, columns, whole=True)
        for load in loads:
            sch.compute_at(load, trip, preserve_unit_loops=True)
            self._deal_out_inside(load, in_thread=True)
            self._lay_out(load, Kind.ELEMENT)
        if tile.rows > 1:
            sch.bind(below, "threadIdx.y")
        sch.bind(thread, "threadIdx.x")
        self._unroll(flight, element, whole=False)

    def _keep_partial(self, block: Any) -> list[Any]:
        """Reduce in registers what goes to shared memory then; return the blocks that store it."""
        sch, count = self.sch, range(len(self.sch.get(block).writes))
        for number in count:
            sch.set_scope(block, number, "shared.dyn")
        stores = [sch.cache_write(block, i, "local") for i in count]
        sizes = [*self._sizes(Kind.REDUCTION), 1]
        for store in stores:
            self._number(store, sizes)
        self._flatten(block, sizes)
        for store in stores:
            index = self._by_strip(list(sch.get(store).writes[0].source.shape))
            sch.transform_layout(store, ("write", 0), index, assume_injective_transform=True)
        return stores

    def _combine_groups(self, block: Any, stores: list[Any]) -> None:
        """Combine some partial results of a column in each thread: all threads have one or none."""
        sch, tile = self.sch, self.tile
        outer, column, *share, group, _ = list(sch.get_loops(block))
        strip, below, thread = sch.split(column, [None, tile.vector, tile.threads])
        sch.reorder(outer, strip, *share, group, below, thread)
        _, below = sch.split(sch.fuse(group, below), [None, tile.rows])
        self.grid.append(sch.fuse(outer, strip, *share))
        for store in stores:
            sch.reverse_compute_at(store, thread)
        sch.bind(below, "threadIdx.y")
        sch.bind(thread, "threadIdx.x")

    def _deal_out_columns(self, block: Any, *, whole: bool = False, once: bool = False) -> None:
        """Let each thread have its columns, or one of those below one another alone."""
        sch, tile = self.sch, self.tile
        outer, *share, column = list(sch.get_loops(block))
        strip, thread, element = sch.split(column, [None, tile.threads, tile.vector])
        sch.reorder(outer, strip, *share, thread, element)
        self.grid.append(sch.fuse(outer, strip, *share))
        if once and tile.rows > 1:
            _, below = sch.split(sch.add_unit_loop(thread), [None, tile.rows])
            sch.bind(below, "threadIdx.y")
        sch.bind(thread, "threadIdx.x")
        self._unroll(None, element, whole=whole)

    # -- variables and arrays ---------------------------------------------------------------------

    def _sizes(self, kind: Kind) -> list[int]:
        """Return how many dimensions longer than one are outer, reduced or shared, and kept."""
        program = self.program
        outer, reduced, kept = map(len, (program.outer, program.reduced, program.kept))
        if kind is Kind.ELEMENT:
            return [outer, reduced, kept]
        shared = kind is Kind.REDUCTION and self.tile.blocks > 1
        return [outer, 1, kept] if shared else [outer, kept]

    def _number(self, block: Any, sizes: list[int]) -> None:
        """Let a block count the elements of each group of dimensions by one variable."""
        axes = list(self.sch.get(block).iter_vars)
        extents = [x.dom.extent for x in axes]
        dtype = ir.dtype_of(axes[0].var)
        index = _by_groups(extents, sizes)
        numbered = IndexMap.from_func(index, ndim=len(axes), index_dtype=dtype)
        self.sch.transform_block_layout(block, numbered)

    def _flatten(self, block: Any, sizes: list[int]) -> None:
        """Let the arrays that a block writes have one dimension for each group of them.

        For such arrays TVM computes exactly which part a loop needs.
        """
        for number, region in enumerate(self.sch.get(block).writes):
            shape = list(region.source.shape)
            if len(shape) != len(sizes) or any(x != 1 for x in sizes):
                self.sch.transform_layout(block, ("write", number), _by_groups(shape, sizes))

    def _lay_out(self, block: Any, kind: Kind) -> None:
        """Index flattened arrays that a block writes by what each thread has of them."""
        tile = self.tile

        def index(*i: Any) -> list[Any]:
            *lead, column = i
            if kind is Kind.ELEMENT:
                outer, row = lead
                at_once = tile.rows * tile.flight
                lead = [outer, row // at_once, row % at_once // tile.rows, row % tile.rows]
            place = [column // tile.width, column % tile.width // tile.vector]
            return [*lead, *place, column % tile.vector]

        for number in range(len(self.sch.get(block).writes)):
            self.sch.transform_layout(
                block, ("write", number), index, assume_injective_transform=True
            )

    def _by_strip(self, shape: list[Any]) -> Callable[..., list[Any]]:
        """Index partial results by strip, then by the threads that left them, then by column."""
        sizes, width = self._sizes(Kind.REDUCTION), self.tile.width

        def index(*i: Any) -> list[Any]:
            *lead, column = _cut(i[:-1], shape[:-1], sizes)
            return [*lead, column // width, i[-1], column % width]

        return index

    def _by_share(self, shape: list[Any]) -> Callable[..., list[Any]]:
        """Index results of thread blocks by their number between outer and kept dimensions."""
        outer = len(self.program.outer)

        def index(*i: Any) -> list[Any]:
            *axes, share = i
            real = [x for x, n in zip(axes, shape, strict=True) if not ir.is_const(n, 1)]
            return [*real[:outer], share, *real[outer:]]

        return index


def _by_groups(extents: Sequence[Any], sizes: list[int]) -> Callable[..., list[Any]]:
    return lambda *i: _cut(i, extents, sizes)


def _cut(indices: Sequence[Any], extents: Sequence[Any], sizes: list[int]) -> list[Any]:
    """Return one index for each group of so many dimensions longer than one; 0 for none."""
    real = [x for x in zip(indices, extents, strict=True) if not ir.is_const(x[1], 1)]
    found: list[Any] = []
    for size in sizes:
        group, real = real[:size], real[size:]
        found += flat(*zip(*group, strict=True)) if group else [zero_of(indices)]
    return found


def _unflat(number: Any, extents: Sequence[Any]) -> list[Any]:
    """Return the indices along several dimensions of which a number counts the elements."""
    found: list[Any] = []
    for extent in reversed(extents[1:]):
        found, number = [number % extent, *found], number // extent
    return [number, *found] if extents else []
