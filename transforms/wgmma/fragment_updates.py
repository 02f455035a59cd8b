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

from . import fragment_layout
from .fragment_loops import PAIR, Fragment, only_if
from .shared_pair_loads import load_pair

SIDE = 8  # columns that a thread has two neighbours of


class UpdatedFragment(Fragment):
    """A nest that computes new values of the accumulator, or of a part of it, in its registers."""

    def emit(self) -> ir.Stmt:
        """Compute the registers one by one, where what holds for all of them says so."""
        name, written = self.nest.realize.block.name_hint, ir.full_region(self.tile.registers)
        of_all = self.nest.uniform_predicate
        self.nest = self.nest.without(of_all)
        loops = only_if(ir.conjunction(of_all), self._loops())
        return ir.opaque_block(name, loops, reads=self._regions(), writes=[written])

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
