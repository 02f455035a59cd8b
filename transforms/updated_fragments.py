"""An epilogue that leaves its values in the accumulator's registers: a part of LowerMma.

for i, j in grid(64, 64): acc[i, part * 64 + j] = f(acc[i, part * 64 + j], r[i, j])
->
for g, h in grid(8, 2):
pair[0:2] = r[row, column : column + 2]
acc[part * 32 + 4 g + 2 h] = f(acc[part * 32 + 4 g + 2 h], pair[0])
acc[part * 32 + 4 g + 2 h + 1] = f(acc[part * 32 + 4 g + 2 h + 1], pair[1])
"""

from __future__ import annotations

from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.plan import fragment

from .fragment_loops import Fragment

SIDE = 8  # columns that a thread has two neighbours of


class UpdatedFragment(Fragment):
    """A nest that computes new values of the accumulator, or of a part of it, in its registers."""

    def emit(self) -> ir.Stmt:
        """Compute the registers, each in its turn."""
        acc = ir.full_region(self.registers)
        name = self.nest.realize.block.name_hint
        return ir.opaque_block(name, self._loops(), reads=[acc], writes=[acc])

    def _loops(self) -> ir.Stmt:
        subtiles, groups = self.nest.rows // fragment.SUBTILE_ROWS, self.nest.columns // SIDE
        return ir.make_loop("subtile", subtiles, lambda subtile:
            ir.make_loop("g", groups, lambda g:
                ir.make_loop("h", 2, lambda h:
                    self._pair(subtile, 0, g, h), unroll=True),
                unroll=True), unroll=True)  # fmt: skip

    def _pair(self, subtile: Any, chunk: Any, g: Any, h: Any) -> ir.Stmt:
        """Compute two neighbours; what they read of a shared tile is loaded as one vector."""
        e = ir.Var("e", "int32")
        both, condition = self._element(subtile, chunk, g, h, e)
        tiles = ir.find_all(both.value, ir.TensorLoad, lambda x: ir.is_shared(x.source))
        alone = len({tuple(map(str, (x.source, *x.indices))) for x in tiles}) == 1
        if not alone or not ir.is_const(condition, 1) or not self._is_pair(tiles[0], e):
            return super()._pair(subtile, chunk, g, h)
        old = ir.new_buffer(f"{tiles[0].source.name}_pair", (2,), ir.dtype_of(tiles[0]), "local")
        load = ir.BufferStore(old, tiles[0], [e])

        def one(x: int) -> ir.BufferStore:
            def read(node: ir.TensorLoad, mutator: Any) -> Any:
                loaded = ir.is_shared(node.source)
                return tirx.BufferLoad(old, [x]) if loaded else mutator.default_mutate(node)

            store, _ = self._element(subtile, chunk, g, h, x)
            return ir.BufferStore(
                store.buffer, ir.mutate(store.value, [(ir.TensorLoad, read)]), store.indices
            )

        body = ir.seq(ir.For(e, 0, 2, ir.ForKind.VECTORIZED, load), one(0), one(1))
        return ir.opaque_block("pair", body, alloc_buffers=[old])

    def _is_pair(self, load: ir.TensorLoad, e: ir.Var) -> bool:
        """Tell whether two neighbours lie side by side, from an even place on."""
        *rows, column = load.indices
        first = ir.substitute(column, {e: 0})
        step = ir.simplify(ir.substitute(column, {e: 1}) - first)
        outside = ir.depends_on(rows, [e]) if rows else False
        known = sym.Analyzer().modular_set(first)
        is_even = int(known.coeff) % 2 == 0 and int(known.base) % 2 == 0
        return ir.is_const(step, 1) and not outside and is_even

    def _register(self, subtile: Any, chunk: Any, i: Any) -> Any:
        first = self.nest.row_start // fragment.SUBTILE_ROWS
        # Eight columns are four registers, whichever instruction they are from.
        return self.plan.register(first + subtile, chunk, self.nest.column_start // 2 + i)


def is_first(nest: Fragment) -> bool:
    """Tell whether a nest fills the accumulator, and does not go on from what is there."""
    return nest.is_fill and not isinstance(nest, UpdatedFragment)
