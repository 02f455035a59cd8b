"""Store accumulator registers to rows that begin at any element, by aligned vectors.

Part of LowerWgmma, for rows whose distance is no multiple of 16 bytes (197 columns of 16 bits), and
for tiles whose columns are no whole groups of four threads' runs (136).

    for j in range(128): C[i, j] = acc[i, j]                      row i begins p elements after 16 B
  ->
    run = columns 8 t to 8 t + 7                                  fragment_global_stores.py
    before = the run of the thread on the left
    run = the last p elements of `before`, the first 8 - p of `run`
    if 0 <= 8 t - p and the run ends in bounds:
        C[i, 8 t - p : 8 t - p + 8] = run                         aligned
    for the columns in front of the first whole run, and after the last one:
        C[i, j] = acc[i, j]                                       from the registers as they were

A run is shifted in registers: a thread takes the four words of its left neighbour, selects five of
both threads' eight words by the words of the shift, and moves these by its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.access import AffineAccess, step_of
from tvm_hopper.analysis.divisors import divides
from tvm_hopper.analysis.vector_runs import is_run_in_bounds, starts_aligned
from tvm_hopper.codegen_patches.ptx.registers import shuffle_from
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import THREAD_ACCESS_BYTES, THREADS_PER_WARP, WORD_BYTES
from tvm_hopper.transforms.common.word_shifts import bind_word, moved_words
from tvm_hopper.transforms.wgmma import fragment_layout
from tvm_hopper.transforms.wgmma.fragment_loops import PAIR, only_if

from .fragment_global_stores import StoredFragment, unrolled
from .fragment_row_exchange import ROW_THREADS

EIGHT = 8  # columns whose pairs four threads hold


class ShiftedFragment(StoredFragment):
    """An epilogue's nest whose rows begin at any element of memory."""

    by_runs = False

    @property
    def best_run_length(self) -> int:
        """Neighbours that a store writes: what lies between vectors does not count."""
        return self.run_length if self.by_runs else super().best_run_length

    @property
    def width(self) -> int:
        """All columns: registers of one instruction follow those of the one before."""
        return self.nest.columns if self.by_runs else super().width

    def _choose_run_length(self) -> int:
        found = super()._choose_run_length()
        length = THREAD_ACCESS_BYTES // dtype_bytes(self.dtype)
        if found > 2 or self.is_update or not self._can_shift(length):
            return found
        self.by_runs, self.run_length = True, length
        return length

    def _can_shift(self, length: int) -> bool:
        """Tell whether columns are neighbours in memory, in bounds from the first to a last one."""
        column = self.nest.column.loop_var
        *outer, last = self.store.indices
        return (
            dtype_bytes(self.dtype) <= 2
            and self.nest.columns >= length * ROW_THREADS
            and step_of(last, column) == 1
            and self._strides[-1] == 1
            and not ir.depends_on(outer, [column])
            and starts_aligned(self.store.buffer, length)
            and all(
                isinstance(x, tirx.LT) and step_of(x.a, column) == 1
                and not ir.depends_on(x.b, [column])
                for x in self._terms(True)
            )
        )  # fmt: skip

    @property
    def _strides(self) -> tuple[Any, ...]:
        return AffineAccess(self.store.buffer, (), ()).strides

    def _terms(self, of_column: bool) -> list[Any]:
        """Return the terms of the predicate that speak of columns, or the others."""
        column = self.nest.column.loop_var
        terms = ir.conjuncts(self.nest.predicate)
        return [x for x in terms if ir.depends_on(x, [column]) == of_column]

    def _shift(self, row: Any) -> Any:
        """Return how many elements after a multiple of 16 bytes a row of the tile begins."""
        length, total = self.run_length, None
        values = self._at(row, 0)
        for index, stride in zip(self.store.indices, self._strides, strict=True):
            if divides(length, stride):
                continue
            step = stride % length
            at = ir.as_int32(ir.simplify(ir.substitute(index, values)) % length)
            part = at * (step if isinstance(step, int) else ir.as_int32(step))
            total = part if total is None else total + part
        return tirx.IntImm("int32", 0) if total is None else ir.simplify(total % length)

    @property
    def _moves_words(self) -> bool:
        """Whether all rows begin at a multiple of four bytes."""
        unit = WORD_BYTES // dtype_bytes(self.dtype)
        last = self._at(ir.Var("row", "int32"), 0)
        start = ir.substitute(self.store.indices[-1], last)
        return divides(unit, start) and all(divides(unit, x) for x in self._strides[:-1])

    @property
    def _has_ends(self) -> bool:
        """Whether columns may be in no whole run: not if rows, tiles and bounds are whole runs."""
        length, e = self.run_length, ir.Var("e", "int32")
        start, row = ir.Var("start", "int32"), ir.Var("row", "int32")
        values = self._at(row, start * length + e)
        indices = [ir.substitute(x, values) for x in self.store.indices]
        condition = ir.substitute(self.nest.predicate, values)
        whole = is_run_in_bounds(self.store.buffer, indices, condition, e, length)
        return not whole or self.nest.columns % length != 0

    # -- the nest

    def _loops(self) -> ir.Stmt:
        if not self.by_runs:
            return super()._loops()
        has_ends = self._has_ends
        groups = -(-self.nest.columns // (self.run_length * ROW_THREADS))
        run = self._scratch("run", 2 * groups * self.run_length)
        words = ir.new_buffer(f"{run.name}_words", (2 * groups * ROW_THREADS,), "uint32", "local")

        def exchanged(subtile: Any, g: Any) -> ir.Stmt:
            return ir.seq(
                self._fence_functions(),
                unrolled("h", 2, lambda h: self._exchanged(run, g * 2 + h, subtile, 0, g, h)),
            )

        def moved(subtile: Any, h: Any) -> ir.Stmt:
            shift = ir.Var("shift", "int32")
            return ir.seq(
                tirx.Bind(shift, self._shift(self._row(subtile, h))),
                # from the last group on: each takes what the one before it holds yet
                unrolled("back", groups, lambda x: self._moved(words, groups - 1 - x, h, shift)),
            )

        def shifts(subtile: Any) -> ir.Stmt:
            moves = unrolled("h", 2, lambda h: moved(subtile, h))
            return ir.seq(tirx.DeclBuffer(words, data=run.data), moves)

        def stored(subtile: Any, h: Any) -> ir.Stmt:
            shift, row = ir.Var("shift", "int32"), self._row(subtile, h)
            own = shift if has_ends else 0
            stores = ir.seq(
                tirx.Bind(shift, self._shift(row)) if has_ends else None,
                unrolled("g", groups, lambda g: self._vector(run, subtile, g, h, own)),
                self._ends(subtile, h, shift) if has_ends else None,
            )
            inside = ir.substitute(ir.conjunction(self._terms(False)), self._at(row, 0))
            return only_if(inside, stores)

        return unrolled("subtile", self.layout.m // fragment_layout.SUBTILE_ROWS, lambda subtile:
            ir.seq(unrolled("g", groups, lambda g: exchanged(subtile, g)),
                   shifts(subtile) if has_ends else None,
                   unrolled("h", 2, lambda h: stored(subtile, h))))  # fmt: skip

    def _element(
        self, subtile: Any, chunk: Any, g: Any, h: Any, e: Any, anywhere: bool = False
    ) -> tuple[ir.BufferStore, Any]:
        """Take the last eight columns for those that the last group lacks."""
        eights = self.nest.columns // EIGHT
        if self.by_runs and eights * EIGHT % (self.run_length * ROW_THREADS):
            g = tirx.min(g, eights - 1)
        return super()._element(subtile, chunk, g, h, e, anywhere)

    def _moved(self, words: ir.Var, g: Any, h: Any, shift: Any) -> ir.Stmt:
        """Move the words of a group's run by the shift, behind those of the thread on the left."""
        first = (g * 2 + h) * ROW_THREADS
        lane = self.lane % THREADS_PER_WARP
        left = lane // ROW_THREADS * ROW_THREADS + (lane + ROW_THREADS - 1) % ROW_THREADS
        is_last = (lane % ROW_THREADS).equal(ROW_THREADS - 1)
        before = tirx.max(first - 2 * ROW_THREADS, h * ROW_THREADS)  # of the group in front
        shift_bytes = shift * dtype_bytes(self.dtype)
        out: list[Any] = []
        own = [
            bind_word(out, "own", tirx.BufferLoad(words, [first + i])) for i in range(ROW_THREADS)
        ]
        sent = [
            tirx.Select(is_last, tirx.BufferLoad(words, [before + i]), own[i])
            for i in range(ROW_THREADS)
        ]
        both = [*(bind_word(out, "left", shuffle_from(x, left)) for x in sent), *own]
        for i, value in enumerate(moved_words(both, shift_bytes, out, self._moves_words)):
            out.append(ir.BufferStore(words, value, [first + i]))
        return ir.seq(out)

    def _vector(self, run: ir.Var, subtile: Any, g: Any, h: Any, shift: Any) -> ir.Stmt:
        """Store a run where all of it belongs to the row."""
        length, e = self.run_length, ir.Var("e", "int32")
        first = (g * ROW_THREADS + self.lane % ROW_THREADS) * length - shift
        row = self._row(subtile, h)
        indices = [ir.substitute(x, self._at(row, first + e)) for x in self.store.indices]
        value = tirx.BufferLoad(run, [(g * 2 + h) * length + e])
        write = ir.BufferStore(self.store.buffer, value, indices)
        vector = ir.For(e, 0, length, ir.ForKind.VECTORIZED, write)
        return only_if(self._is_whole(row, first), vector)

    def _is_whole(self, row: Any, first: Any) -> Any:
        """Return whether the run from a column on is one of the tile, and in bounds."""
        last = ir.simplify(first + (self.run_length - 1))
        bounds = [ir.substitute(x, self._at(row, last)) for x in self._terms(True)]
        return ir.conjunction([first >= 0, last < self.nest.columns, *bounds])

    def _ends(self, subtile: Any, h: Any, shift: Any) -> ir.Stmt:
        """Store the columns one by one that are in no whole run: at both ends of the row."""
        row, eights = self._row(subtile, h), self.nest.columns // EIGHT
        front = self.run_length // EIGHT
        back = max(front, -(-(self.nest.columns - self.run_length - EIGHT + 2) // EIGHT))

        def one(g: Any) -> ir.Stmt:
            column = g * EIGHT + self.lane % ROW_THREADS * len(PAIR)
            return ir.seq([self._end(subtile, g, h, row, column, shift, x) for x in PAIR])

        inside = [ir.substitute(x, self._at(row, self.nest.columns - 1)) for x in self._terms(True)]
        between = ir.seq()
        if inside and back > front:
            between = ir.IfThenElse(
                tirx.Not(ir.conjunction(inside)), _each("g", front, back, one), None
            )
        return ir.seq(_each("g", 0, front, one), between, _each("g", back, eights, one))

    def _end(
        self, subtile: Any, g: Any, h: Any, row: Any, column: Any, shift: Any, x: int
    ) -> ir.Stmt:
        """Store one element if it is in bounds and its run is not whole."""
        new, _ = self._element(subtile, 0, g, h, x)
        place = column + x
        bounds = [ir.substitute(y, self._at(row, place)) for y in self._terms(True)]
        first = place - (place + shift) % self.run_length
        is_alone = tirx.Not(self._is_whole(row, first))
        return ir.IfThenElse(ir.conjunction([*bounds, is_alone]), new, None)


def _each(name: str, first: int, end: int, body: Callable[[Any], ir.Stmt]) -> ir.Stmt:
    if end <= first:
        return ir.seq()
    return unrolled(name, end - first, lambda i: body(i + first if first else i))
