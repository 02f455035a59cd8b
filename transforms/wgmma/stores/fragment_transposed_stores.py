"""Store accumulator registers to a transposed output, through exchanges between lanes.

Used by LowerWgmma for epilogues of products that are multiplied as C^T = B^T A^T.  A thread holds
two neighbours of a row of the fragment, which are far apart in memory; in memory side by side are
the elements of a column, one of which is in each fourth lane:

    matrix of 8 x 8 elements, lane l: row l // 4, columns 2 (l % 4) and the next one
      movmatrix                     -> column l // 4, rows 2 (l % 4) and the next one
      exchange between four lanes   -> all eight rows of one column of one of four matrices

Four matrices form a 2 x 2 square, so that two lanes store the 16 rows of a warp's column: 32 bytes,
all of a sector. One by one they would be 16 stores.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.access import step_of
from tvm_hopper.analysis.vector_runs import is_run_in_bounds, shared_condition
from tvm_hopper.codegen_patches.ptx import matrix
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.transforms.wgmma import fragment_layout
from tvm_hopper.transforms.wgmma.fragment_loops import PAIR, only_if
from tvm_hopper.transforms.wgmma.fragment_loops_plan import FragmentNest

from .fragment_global_stores import StoredFragment
from .fragment_row_exchange import ROW_THREADS, RUN, exchange
from .fragment_shifted_stores import ShiftedFragment

WARP_ROWS = 2 * RUN  # of a subtile


class TransposedFragment(StoredFragment):
    """An epilogue's nest whose rows run along memory; narrow stores where bounds cut runs."""

    @property
    def best_run_length(self) -> int:
        """No more than what is stored: columns of the fragment are no rows in memory."""
        return self.run_length

    def _choose_run_length(self) -> int:
        subtile, chunk, g, h, e = (ir.Var(x, "int32") for x in "scghe")
        target = self._run_target(subtile, chunk, g, h, e)
        is_whole = not self.is_update and is_run_in_bounds(self.store.buffer, *target, e, RUN)
        return RUN if is_whole else 1

    def _loops(self) -> ir.Stmt:
        if self.run_length == 1:
            return self._over_registers(RUN, self._pair)
        subtiles, chunks = (
            self.layout.m // fragment_layout.SUBTILE_ROWS,
            self.nest.columns // self.width,
        )
        return ir.make_loop("subtile", subtiles, lambda subtile:
            ir.make_loop("chunk", chunks, lambda chunk:
                ir.make_loop("g", -(-self._matrices // 2), lambda g:
                    self._columns(subtile, chunk, g),
                    unroll=True), unroll=True), unroll=True)  # fmt: skip

    @property
    def _matrices(self) -> int:
        """Matrices side by side."""
        return self.width // RUN

    def _run_target(
        self, subtile: Any, chunk: Any, g: Any, h: Any, e: Any
    ) -> tuple[list[Any], Any]:
        """Return where a thread stores eight rows of a column, and under which condition."""
        own = self.lane % ROW_THREADS
        number = g * 2 + own // 2
        column = chunk * self.width + number * RUN + self.lane % THREADS_PER_WARP // ROW_THREADS
        row = self.lane // THREADS_PER_WARP * WARP_ROWS + own % 2 * RUN + e
        values = self._at(subtile * fragment_layout.SUBTILE_ROWS + row, column)
        indices = [ir.substitute(x, values) for x in self.store.indices]
        condition = ir.substitute(self.nest.predicate, values)
        if self._matrices % 2:
            condition = ir.conjunction([number < self._matrices, condition])
        return indices, condition

    def _columns(self, subtile: Any, chunk: Any, g: Any) -> ir.Stmt:
        """Compute four matrices, turn them, exchange words, and store eight rows of a column."""
        run = self._scratch("run", RUN)
        words = ir.new_buffer(f"{run.name}_words", (ROW_THREADS,), "uint32", "local")
        e = ir.Var("e", "int32")
        indices, condition = self._run_target(subtile, chunk, g, 0, e)

        def compute(number: int) -> list[ir.Stmt]:
            place, h = divmod(number, 2)
            own = g * 2 + place
            if place and self._matrices % 2:
                own = tirx.min(own, self._matrices - 1)  # there is no other one
            values = [self._element(subtile, chunk, own, h, x, anywhere=True)[0] for x in PAIR]
            return [
                ir.BufferStore(run, one.value, [number * 2 + x])
                for x, one in zip(PAIR, values, strict=True)
            ]

        def turn(number: int) -> Any:
            word = tirx.BufferLoad(words, [number])
            return matrix.turn(word, word)

        write = ir.BufferStore(self.store.buffer, tirx.BufferLoad(run, [e]), indices)
        store = ir.For(e, 0, RUN, ir.ForKind.VECTORIZED, write)
        return ir.seq(
            [compute(n) for n in range(ROW_THREADS)],
            tirx.DeclBuffer(words, data=run.data),
            [turn(n) for n in range(ROW_THREADS)],
            exchange(words, self.lane),
            only_if(shared_condition(condition, e, RUN), store),
        )


def stored_by(nest: FragmentNest, in_parts: bool) -> type[StoredFragment]:
    """Choose how a nest stores to memory: where rows of its fragment run along that, by columns."""
    store = nest.realize.block.body
    last = store.indices[-1]
    is_turned = (
        not in_parts
        and not nest.reads
        and nest.columns >= fragment_layout.MIN_TRANSPOSED_COLUMNS
        and dtype_bytes(ir.dtype_of(store.buffer)) == 2
        and step_of(last, nest.row.loop_var) == 1
        and step_of(last, nest.column.loop_var) != 1
    )
    if is_turned:
        return TransposedFragment
    return StoredFragment if in_parts else ShiftedFragment
