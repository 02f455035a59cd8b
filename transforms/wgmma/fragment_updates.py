"""Compute an epilogue's values in the accumulator's registers. Part of LowerWgmma.

for i, j in grid(64, 64): acc[i, part * 64 + j] = f(acc[i, part * 64 + j], r[i, j])
->
for g, h in grid(8, 2):
pair[0:2] = r[row, column : column + 2]
acc[part * 32 + 4 g + 2 h] = f(acc[part * 32 + 4 g + 2 h], pair[0])
acc[part * 32 + 4 g + 2 h + 1] = f(acc[part * 32 + 4 g + 2 h + 1], pair[1])
"""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir
from tvm_hopper.facts import wgmma
from tvm_hopper.transforms.common.shared_pair_loads import load_pair

from . import fragment_layout
from .column_bits import ColumnBits, take_column_bits
from .fragment_bounds import RowBounds, take_bounds
from .fragment_loops import PAIR, Fragment, only_if

SIDE = 8  # columns that a thread has two neighbours of


class UpdatedFragment(Fragment):
    """A nest that computes new values of the accumulator, or of a part of it, in its registers."""

    bits: ColumnBits | None = None
    bounds: RowBounds | None = None

    def emit(self) -> ir.Stmt:
        """Compute the registers one by one, where what holds for all of them says so."""
        name, written = self.nest.realize.block.name_hint, ir.full_region(self.tile.registers)
        of_all = self.nest.uniform_predicate
        self.nest = self.nest.without(of_all)
        ahead = ir.seq(self._set_bits(), self._set_bounds())
        loops = only_if(ir.conjunction(of_all), ir.seq(ahead, self._loops()))
        known = [x for x in (self.bits, self.bounds) if x is not None]
        own = [register for x in known for register in x.registers]
        return ir.opaque_block(
            name, loops, reads=self._regions(), writes=[written], alloc_buffers=own
        )

    def _set_bits(self) -> Any:
        """Compute what memory says of columns, once for all rows."""
        row, column = self.nest.row.loop_var, self.nest.column.loop_var
        self.bits = take_column_bits(
            self.store, self.nest.predicate, row, column, self.nest.columns
        )
        if self.bits is None:
            return None
        self.store = self.bits.store
        return self.bits.set_all(self.lane, lambda column: self._at(0, column))

    def _set_bounds(self) -> Any:
        """Compute what columns are compared with, once for each row of a thread."""
        each = self.nest.rows // fragment_layout.SUBTILE_ROWS * wgmma.ROWS_OF_THREAD
        self.bounds = take_bounds(self.store, self.nest.column.loop_var, each)
        if self.bounds is None:
            return None
        self.store = self.bounds.store

        def at(place: Any) -> dict[Any, Any]:
            subtile, h = place // wgmma.ROWS_OF_THREAD, place % wgmma.ROWS_OF_THREAD
            return self._at(self._row(subtile, h), fragment_layout.column(0, self.lane))

        return self.bounds.set_all(each, at)

    def _element(
        self, subtile: Any, chunk: Any, g: Any, h: Any, e: Any, anywhere: bool = False
    ) -> tuple[ir.BufferStore, Any]:
        new, condition = super()._element(subtile, chunk, g, h, e, anywhere)
        row, column = subtile * wgmma.ROWS_OF_THREAD + h, g * SIDE + e
        places = {} if self.bits is None else {self.bits.step: column}
        if self.bounds is not None:
            places |= {self.bounds.place: row, self.bounds.step: column}
        return ir.substitute(new, places), condition

    def _loops(self) -> ir.Stmt:
        subtiles, groups = self.nest.rows // fragment_layout.SUBTILE_ROWS, self.nest.columns // SIDE
        return ir.make_loop("subtile", subtiles, lambda subtile:
            ir.make_loop("g", groups, lambda g:
                ir.make_loop("h", 2, lambda h:
                    self._pair(subtile, 0, g, h), unroll=True),
                unroll=True), unroll=True)  # fmt: skip

    def _pair(self, subtile: Any, chunk: Any, g: Any, h: Any) -> ir.Stmt:
        """Compute two neighbours; what they read of a shared tile is loaded as one vector."""
        _, condition = self._element(subtile, chunk, g, h, ir.Var("e", "int32"))
        stores = [self._element(subtile, chunk, g, h, x)[0] for x in PAIR]
        loaded = load_pair(self.store.value, self._at, stores[0].value)
        if loaded is None or not ir.is_const(condition, 1):
            return super()._pair(subtile, chunk, g, h)
        new = [
            ir.BufferStore(store.buffer, loaded.in_value(store.value, x), store.indices)
            for x, store in zip(PAIR, stores, strict=True)
        ]
        body = ir.seq(loaded.load, *new)
        return ir.opaque_block("pair", body, alloc_buffers=[loaded.registers])

    def _register(self, subtile: Any, chunk: Any, i: Any) -> Any:
        first = self.nest.row_start // fragment_layout.SUBTILE_ROWS
        # Eight columns are four registers, whichever instruction they are from.
        return self.layout.register(first + subtile, chunk, self.nest.column_start // 2 + i)


def is_first(nest: Fragment) -> bool:
    """Tell whether a nest fills the accumulator, and does not go on from what is there."""
    return nest.is_fill and not isinstance(nest, UpdatedFragment)
