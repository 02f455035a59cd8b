"""Store accumulator registers to global memory.

Used by LowerWgmma for epilogues. Elements of 16 bits are stored eight at once, those of 8 bits 16
at once, where all of them lie in bounds and aligned together. The pairs of a row make 8 or 16
bytes, so the four threads of a row first exchange words of pairs (fragment_row_exchange.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.access import step_of
from tvm_hopper.analysis.vector_runs import is_run_in_bounds, shared_condition
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import THREAD_ACCESS_BYTES, WORD_BYTES
from tvm_hopper.transforms.wgmma import fragment_layout
from tvm_hopper.transforms.wgmma.fragment_loops import PAIR, Fragment, only_if

from .fragment_row_exchange import ROW_THREADS, RUN, exchange, sort_halves


class StoredFragment(Fragment):
    """An epilogue's nest that stores to global memory."""

    @property
    def shortfall(self) -> tuple[str, str, str] | None:
        """Say why stores are narrow, what wider ones need, what to do; None if they are wide."""
        if self.run_length == self.best_run_length:
            return None
        strides = self.store.buffer.ty.strides
        row = strides[-2] if len(strides) > 1 else self.store.buffer.shape[-1]
        return (
            f"{self.run_length} elements at a time, as rows of {row} keep no more aligned and in "
            "bounds together",
            f"rows of a multiple of {self.best_run_length} elements",
            "pad the tensor's last dimension",
        )

    @property
    def best_run_length(self) -> int:
        """Neighbours that a store would write if bounds and alignment allowed it."""
        if step_of(self.store.indices[-1], self.nest.column.loop_var) != 1:
            return 1  # a row of the fragment is no row in memory
        size = dtype_bytes(self.dtype)
        whole = size <= 2 and self.width % (THREAD_ACCESS_BYTES // size * ROW_THREADS) == 0
        return THREAD_ACCESS_BYTES // size if whole and not self.is_update else 2

    @property
    def is_exchanged(self) -> bool:
        """Tell whether threads store what they got from each other."""
        return self.run_length > 2

    def _loops(self) -> ir.Stmt:
        always = ir.is_const(self.nest.realize.predicate, 1)
        if self.is_exchanged and not always and not self.in_parts:
            return self._runs()
        if self.is_exchanged:
            return self._over_registers(self.run_length * ROW_THREADS, self._run)
        return self._over_registers(RUN, self._pair)

    def _choose_run_length(self) -> int:
        """Choose the longest run of columns that lies in bounds, and aligned, together."""
        subtile, chunk, g, h, e = (ir.Var(x, "int32") for x in "scghe")
        best = self.run_length = self.best_run_length  # what the target of a run depends on
        if best > 2 and is_run_in_bounds(
            self.store.buffer, *self._run_target(subtile, chunk, g, h, e), e, best
        ):
            return best
        new, condition = self._element(subtile, chunk, g, h, e)
        return 2 if is_run_in_bounds(new.buffer, list(new.indices), condition, e, 2) else 1

    def _run_target(
        self, subtile: Any, chunk: Any, g: Any, h: Any, e: Any
    ) -> tuple[list[Any], Any]:
        """Return where a thread stores its run of columns, and under which condition."""
        column = (g * ROW_THREADS + self.lane % ROW_THREADS) * self.run_length
        column = chunk * self.width + column + e
        values = self._at(self._row(subtile, h), column)
        indices = [ir.substitute(x, values) for x in self.store.indices]
        return indices, ir.substitute(self.nest.predicate, values)

    def _run(self, subtile: Any, chunk: Any, g: Any, h: Any) -> ir.Stmt:
        """Compute pairs, exchange them with the row's other threads, store a run of columns."""
        run = self._scratch("run", self.run_length)
        parts = run, 0, subtile, chunk, g, h
        _, condition = self._run_target(subtile, chunk, g, h, e := ir.Var("e", "int32"))
        write = only_if(shared_condition(condition, e, self.run_length), self._write(*parts))
        return ir.seq(self._exchanged(*parts), write)

    def _runs(self) -> ir.Stmt:
        """Do so for 64 rows of the tile, before any of these is stored under a condition.

        The assembler moves nothing over a branch: each round of an exchange would be waited for by
        itself. One branch a row is left where the condition speaks of rows alone.
        """
        length = self.run_length
        width = self.width // (length * ROW_THREADS)
        chunks = self.nest.columns // self.width
        run = self._scratch("run", 2 * chunks * width * length)

        def number(chunk: Any, g: Any, h: Any) -> Any:
            return (chunk * width + g) * 2 + h

        def compute(subtile: Any) -> ir.Stmt:
            def one(c: Any, n: Any, h: Any) -> ir.Stmt:
                return self._exchanged(run, number(c, n, h), subtile, c, n, h)

            return unrolled("chunk", chunks, lambda c:
                unrolled("g", width, lambda n:
                    ir.seq(self._fence_functions(),
                           unrolled("h", 2, lambda h: one(c, n, h)))))  # fmt: skip

        def write(subtile: Any, h: Any) -> ir.Stmt:
            chunk, g, e = (ir.Var(x, "int32") for x in "cge")
            terms = list(ir.conjuncts(self._run_target(subtile, chunk, g, h, e)[1]))
            of_row = [x for x in terms if not ir.depends_on(x, [chunk, g, e])]
            rest = ir.conjunction(x for x in terms if ir.depends_on(x, [chunk, g, e]))

            def one(c: Any, n: Any) -> ir.Stmt:
                condition = shared_condition(ir.substitute(rest, {chunk: c, g: n}), e, length)
                return only_if(
                    ir.simplify(condition), self._write(run, number(c, n, h), subtile, c, n, h)
                )

            stores = unrolled("chunk", chunks, lambda c: unrolled("g", width, lambda n: one(c, n)))
            return only_if(ir.conjunction(of_row), stores)

        return unrolled("subtile", self.layout.m // fragment_layout.SUBTILE_ROWS, lambda subtile:
            ir.seq(compute(subtile), unrolled("h", 2, lambda h: write(subtile, h))))  # fmt: skip

    def _exchanged(
        self, run: ir.Var, number: Any, subtile: Any, chunk: Any, g: Any, h: Any
    ) -> ir.Stmt:
        """Compute pairs, and let the row's threads exchange them, four words of them each."""
        length = self.run_length
        pairs, size = length // 2, dtype_bytes(self.dtype)
        words = ir.new_buffer(
            f"{run.name}_words", (run.shape[0] * size // WORD_BYTES,), "uint32", "local"
        )

        def one(j: Any, x: int) -> ir.Stmt:
            new, _ = self._element(subtile, chunk, g * pairs + j, h, x, anywhere=True)
            return ir.BufferStore(run, new.value, [number * length + j * 2 + x])

        return ir.seq(
            unrolled("j", pairs, lambda j: ir.seq([one(j, x) for x in PAIR])),
            tirx.DeclBuffer(words, data=run.data),
            exchange(words, self.lane, number * ROW_THREADS),
            sort_halves(words, number * ROW_THREADS) if size == 1 else None,
        )

    def _write(self, run: ir.Var, number: Any, subtile: Any, chunk: Any, g: Any, h: Any) -> ir.Stmt:
        """Store a run of columns."""
        e, length = ir.Var("e", "int32"), self.run_length
        indices, _ = self._run_target(subtile, chunk, g, h, e)
        value = tirx.BufferLoad(run, [number * length + e])
        write = ir.BufferStore(self.store.buffer, value, indices)
        return ir.For(e, 0, length, ir.ForKind.VECTORIZED, write)


def unrolled(name: str, extent: int, body: Callable[[Any], ir.Stmt]) -> ir.Stmt:
    """Build a loop that the CUDA compiler unrolls."""
    return ir.make_loop(name, extent, body, unroll=True)
