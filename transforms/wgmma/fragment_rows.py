"""Reduce rows of an accumulator, and compute and store what each row has. Part of LowerWgmma.

    for i, j in grid(64, 128): Q[i] = Q[i] + f(acc[i, j])
    for i in range(64): G[m + i] = Q[i]
  ->
    partial[0:2] = 0
    for g, h, e in unroll(16, 2, 2): partial[h] = partial[h] + f(acc[4 g + 2 h + e])
    for h in unroll(2):
        partial[h] = partial[h] + shuffle_xor(partial[h], 1)
        partial[h] = partial[h] + shuffle_xor(partial[h], 2)
        Q[h] = Q[h] + partial[h]
    if lane % 4 == 0:
        for h in unroll(2): G[m + row(h)] = Q[h]

The four threads of a row add up the same numbers, each in another order of two: all have the same
bits. One of them stores.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.updates import combine, find_update
from tvm_hopper.codegen_patches.ptx.registers import shuffle_xor

from .fragment_layout import SUBTILE_ROWS, AccumulatorLayout, RowLayout
from .fragment_loops import PAIR, Fragment, only_if
from .stores.fragment_row_exchange import ROW_THREADS

DISTANCES = (1, 2)  # between the threads of a row


class RowFragment(Fragment):
    """A nest over an element for each row: it fills or computes registers, or stores them."""

    def _loops(self) -> ir.Stmt:
        def one(subtile: Any, h: Any) -> ir.Stmt:
            new, condition = self._element(subtile, 0, 0, h, 0)
            if not self.is_fill:
                condition = tirx.And(condition, (self.lane % ROW_THREADS).equal(0))
            return only_if(ir.simplify(condition), new)

        return ir.make_loop("subtile", self.layout.m // SUBTILE_ROWS, lambda subtile:
            ir.make_loop("h", 2, lambda h: one(subtile, h), unroll=True), unroll=True)  # fmt: skip


class ReducedRows(Fragment):
    """A nest that combines the elements of each row with what the row has."""

    def emit(self) -> ir.Stmt:
        """Combine a thread's elements, then those of the threads of a row."""
        update = find_update(self.store)
        assert update is not None, "a plan reduces by one operation"
        self.store = ir.BufferStore(self.store.buffer, update.value, self.store.indices)
        whole = next(x.layout for x in self.tiles if isinstance(x.layout, AccumulatorLayout))
        rows = RowLayout(whole.m)
        self.layout = whole
        partial = self._scratch("partial", 2)
        is_sum = update.operation == "add"

        def add(h: Any, value: Any) -> ir.Stmt:
            old = tirx.BufferLoad(partial, [h])
            return ir.BufferStore(partial, combine(update.operation, old, value), [h])

        def add_if(condition: Any, h: Any, value: Any) -> ir.Stmt:
            new = add(h, value)
            if ir.is_const(condition, 1):
                return new
            kept = tirx.Select(condition, new.value, tirx.BufferLoad(partial, [h]))
            return ir.BufferStore(partial, kept, [h])

        def total(subtile: Any, h: Any) -> Any:
            return tirx.BufferLoad(self.tile.registers, [rows.of_half(subtile, h)])

        def begin(subtile: Any, h: Any) -> ir.Stmt:
            first = tirx.const(0, self.dtype) if is_sum else total(subtile, h)
            return ir.BufferStore(partial, first, [h])

        def elements(subtile: Any, chunk: Any, g: Any, h: Any) -> ir.Stmt:
            found = [self._element(subtile, chunk, g, h, e, anywhere=True) for e in PAIR]
            return ir.seq([add_if(condition, h, new.value) for new, condition in found])

        def finish(subtile: Any, h: Any) -> ir.Stmt:
            steps = [add(h, shuffle_xor(tirx.BufferLoad(partial, [h]), x)) for x in DISTANCES]
            value = tirx.BufferLoad(partial, [h])
            value = total(subtile, h) + value if is_sum else value
            place = rows.of_half(subtile, h)
            return ir.seq(steps, ir.BufferStore(self.tile.registers, value, [place]))

        def halves(emit_one: Any, *args: Any) -> ir.Stmt:
            return ir.make_loop("h", 2, lambda h: emit_one(*args, h), unroll=True)

        chunks, groups = self.nest.columns // self.width, self.width // 8
        loops = ir.make_loop("subtile", whole.m // SUBTILE_ROWS, lambda subtile: ir.seq(
            halves(begin, subtile),
            ir.make_loop("chunk", chunks, lambda chunk:
                ir.make_loop("g", groups, lambda g:
                    halves(elements, subtile, chunk, g), unroll=True), unroll=True),
            halves(finish, subtile)), unroll=True)  # fmt: skip
        return ir.opaque_block(
            self.nest.realize.block.name_hint,
            loops,
            reads=self._regions(),
            writes=[ir.full_region(self.tile.registers)],
            alloc_buffers=self.scratch,
        )
