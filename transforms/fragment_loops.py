"""Loops over a warp group's accumulator registers, in place of loops over rows and columns.

Used by LowerMma for fills and epilogues. A thread holds two neighbours of every eight columns, in
registers 4 g + 2 h and 4 g + 2 h + 1. They are stored

- one by one, if the two may be in bounds apart or not aligned together;
- as a pair otherwise;
- as eight, if they have 16 bits: the pairs of a row make 16 bytes, half of what memory moves at
  once, so the four threads that share a row first exchange pairs (row_exchange.py).

The two of a pair are two statements. A loop over them is not unrolled by the CUDA compiler where
`D = float(S) - acc` converts an S of 16 bits, which is inline assembly, and the accumulator goes to
local memory (NVRTC, nvcc 13.0: 368 bytes for 64 registers).
"""

from __future__ import annotations

from typing import Any

from tvm import ir as tvm_ir
from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.vector_runs import is_run_in_bounds, shared_condition
from tvm_hopper.codegen_patches.hold import hold_all
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS
from tvm_hopper.plan import fragment
from tvm_hopper.plan.mma_plan import FragmentNest, MmaPlan

from .row_exchange import ROW_THREADS, RUN, exchange
from .update_in_place import KEEP, load_old

PAIR = (0, 1)  # the two elements, see the module's docstring


class Fragment:
    """A fill's or an epilogue's nest over registers: `emit()` builds its loops."""

    def __init__(
        self,
        nest: FragmentNest,
        plan: MmaPlan,
        registers: ir.Var,
        thread: ir.Var,
        held: bool = False,
    ) -> None:
        self.nest, self.plan, self.registers = nest, plan, registers
        self.held = held  # what a fill sets stays in front of what follows, see LowerMma
        self.store = nest.realize.block.body
        self.lane = thread % WARP_GROUP_THREADS
        self.is_fill = self.store.buffer.same_as(plan.accumulator)
        self.dtype = ir.dtype_of(self.store.buffer)
        self.scratch: list[ir.Var] = []
        self.run_length = self._run_length()  # neighbours that a store writes: 8, 2 or 1

    @property
    def best_run_length(self) -> int:
        """Neighbours that a store would write if bounds and alignment allowed it."""
        whole = dtype_bytes(self.dtype) == 2 and self.plan.instruction_n % (RUN * ROW_THREADS) == 0
        return RUN if whole and not self.is_update else 2

    def emit(self) -> ir.Stmt:
        """Choose the widest store that is right for the whole nest."""
        own = [self.nest.row.loop_var, self.nest.column.loop_var]
        if self.is_fill and not ir.depends_on(self.store.value, own):
            value = _as(self.plan.accumulate, self.store.value)
            fill = ir.make_loop(
                "i",
                self.plan.registers,
                lambda i: ir.BufferStore(self.registers, value, [i]),
                unroll=True,
            )
            return ir.seq(fill, self._kept())
        runs = self.run_length == RUN
        step = RUN * ROW_THREADS if runs else RUN
        emit_one = self._run if runs else self._pair
        width = self.plan.instruction_n
        subtiles, chunks = self.plan.m // fragment.SUBTILE_ROWS, self.plan.n // width
        loops = ir.make_loop("subtile", subtiles, lambda subtile:
            ir.make_loop("chunk", chunks, lambda chunk:
                ir.make_loop("g", width // step, lambda g:
                    ir.make_loop("h", 2, lambda h:
                        emit_one(subtile, chunk, g, h), unroll=True),
                    unroll=True), unroll=True), unroll=True)  # fmt: skip
        return self._block(ir.seq(loops, self._kept()))

    def _kept(self) -> Any:
        """Hold every register that a fill has set."""
        return hold_all(self.registers) if self.is_fill and self.held else None

    def _block(self, loops: ir.Stmt) -> ir.SBlockRealize:
        acc, name = ir.full_region(self.registers), self.nest.realize.block.name_hint
        if self.is_fill:
            return ir.opaque_block(name, loops, writes=[acc])
        written = ir.full_region(self.store.buffer)
        return ir.opaque_block(
            name, loops, reads=[acc], writes=[written], alloc_buffers=self.scratch
        )

    def _scratch(self, name: str, length: int) -> ir.Var:
        """Declare a few registers of the output's type, once for the nest."""
        full_name = f"{self.store.buffer.name}_{name}"
        for buffer in self.scratch:
            if buffer.name == full_name:
                return buffer
        self.scratch.append(ir.new_buffer(full_name, (length,), self.dtype, "local"))
        return self.scratch[-1]

    # -- elements

    def _row(self, subtile: Any, h: Any) -> Any:
        analyzer = _bounds({h: 2})
        row = ir.simplify(fragment.row(h, self.lane), analyzer)
        return subtile * fragment.SUBTILE_ROWS + row

    def _at(self, row: Any, column: Any) -> dict[Any, Any]:
        units = {loop.loop_var: 0 for loop in self.nest.units}
        return {self.nest.row.loop_var: row, self.nest.column.loop_var: column, **units}

    def _element(
        self, subtile: Any, chunk: Any, g: Any, h: Any, e: Any
    ) -> tuple[ir.BufferStore, Any]:
        """Return the store of register 4 g + 2 h + e and the condition under which it runs."""
        i = g * 4 + h * 2 + e
        analyzer = _bounds({h: 2, e: 2})
        column = ir.simplify(fragment.column(i, self.lane), analyzer)
        column = chunk * self.plan.instruction_n + column
        register = tirx.BufferLoad(
            self.registers, [ir.simplify(self.plan.register(subtile, chunk, i))]
        )
        values = self._at(self._row(subtile, h), column)
        new = ir.substitute(self._read(register), values)
        if self.is_fill:
            new = ir.BufferStore(
                self.registers, _as(self.plan.accumulate, new.value), register.indices
            )
        return new, ir.substitute(self.nest.realize.predicate, values)

    def _read(self, register: Any) -> ir.BufferStore:
        """Read the register where the program reads the accumulator, in the type it had there."""
        value = _as(ir.dtype_of(self.plan.accumulator), register)

        def load(node: ir.TensorLoad, mutator: Any) -> Any:
            mine = node.source.same_as(self.plan.accumulator)
            return value if mine else mutator.default_mutate(node)

        return ir.mutate(self.store, [(ir.TensorLoad, load)])

    # -- stores of one and two

    def _pair(self, subtile: Any, chunk: Any, g: Any, h: Any) -> ir.Stmt:
        """Store two neighbours, as one vector if they are aligned and never in bounds apart."""
        if self.run_length == 1:
            return ir.seq([self._one(subtile, chunk, g, h, x) for x in PAIR])
        e = ir.Var("e", "int32")
        new, condition = self._element(subtile, chunk, g, h, e)
        first, from_old = load_old(new, e, self._scratch("old", 2)) if self.is_update else KEEP
        pair = self._scratch("pair", 2)
        values = [self._element(subtile, chunk, g, h, x)[0].value for x in PAIR]
        compute = [ir.BufferStore(pair, from_old(values[x], x), [x]) for x in PAIR]
        write = ir.BufferStore(new.buffer, tirx.BufferLoad(pair, [e]), new.indices)
        both = ir.seq(first, compute, ir.For(e, 0, 2, ir.ForKind.VECTORIZED, write))
        return _if(shared_condition(condition, e, 2), both)

    def _one(self, subtile: Any, chunk: Any, g: Any, h: Any, e: int) -> ir.Stmt:
        """Store one element, or set one register, if it is in bounds."""
        new, condition = self._element(subtile, chunk, g, h, e)
        return _if(condition, new)

    @property
    def is_update(self) -> bool:
        """Whether the store reads the element that it writes: no other thread may write it."""
        return not self.is_fill and bool(
            ir.find_all(
                self.store.value, ir.TensorLoad, lambda x: x.source.same_as(self.store.buffer)
            )
        )

    # -- stores of eight

    def _run_length(self) -> int:
        """Choose the longest run of columns that lies in bounds, and aligned, together."""
        if self.is_fill:
            return 1
        subtile, chunk, g, h, e = (ir.Var(x, "int32") for x in "scghe")
        if self.best_run_length == RUN and is_run_in_bounds(
            self.store.buffer, *self._run_target(subtile, chunk, g, h, e), e, RUN
        ):
            return RUN
        new, condition = self._element(subtile, chunk, g, h, e)
        return 2 if is_run_in_bounds(new.buffer, list(new.indices), condition, e, 2) else 1

    def _run_target(
        self, subtile: Any, chunk: Any, g: Any, h: Any, e: Any
    ) -> tuple[list[Any], Any]:
        """Return where a thread stores its run of eight columns, and under which condition."""
        column = (g * ROW_THREADS + self.lane % ROW_THREADS) * RUN
        column = chunk * self.plan.instruction_n + column + e
        values = self._at(self._row(subtile, h), column)
        indices = [ir.substitute(x, values) for x in self.store.indices]
        return indices, ir.substitute(self.nest.realize.predicate, values)

    def _run(self, subtile: Any, chunk: Any, g: Any, h: Any) -> ir.Stmt:
        """Compute four pairs, exchange them with the row's other threads, store eight columns."""
        run = self._scratch("run", RUN)
        words = ir.new_buffer(f"{run.name}_words", (ROW_THREADS,), "uint32", "local")
        e = ir.Var("e", "int32")

        def one(j: Any, x: int) -> ir.Stmt:
            new, condition = self._element(subtile, chunk, g * ROW_THREADS + j, h, x)
            value = new.value
            if not ir.is_const(condition, 1) and self._loads_elsewhere():
                value = tirx.if_then_else(condition, value, tirx.const(0, self.dtype))
            return ir.BufferStore(run, value, [j * 2 + x])

        compute = ir.make_loop(
            "j", ROW_THREADS, lambda j: ir.seq([one(j, x) for x in PAIR]), unroll=True
        )
        indices, condition = self._run_target(subtile, chunk, g, h, e)
        write = ir.BufferStore(self.store.buffer, tirx.BufferLoad(run, [e]), indices)
        return ir.seq(
            compute,
            tirx.DeclBuffer(words, data=run.data),
            exchange(words, self.lane),
            _if(
                shared_condition(condition, e, RUN),
                ir.For(e, 0, RUN, ir.ForKind.VECTORIZED, write),
            ),
        )

    def _loads_elsewhere(self) -> bool:
        """Tell whether an element's value reads memory beside the accumulator: it needs bounds."""
        loads = ir.find_all(self.store.value, ir.TensorLoad)
        return any(not load.source.same_as(self.plan.accumulator) for load in loads)


def _if(condition: Any, body: ir.Stmt) -> ir.Stmt:
    return body if ir.is_const(condition, 1) else ir.IfThenElse(condition, body, None)


def _bounds(extents: dict[Any, int]) -> sym.Analyzer:
    analyzer = sym.Analyzer()
    for var, extent in ((x, n) for x, n in extents.items() if isinstance(x, ir.Var)):
        analyzer.bind(var, tvm_ir.Range(0, extent))
    return analyzer


def _as(dtype: str, value: Any) -> Any:
    return value if ir.dtype_of(value) == dtype else tirx.Cast(dtype, value)
