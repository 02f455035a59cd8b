"""Store accumulator registers into a shared tile, from which a copy takes them.

Used by LowerWgmma for epilogues whose store goes to shared memory.  Of elements of 16 bits a warp
stores sixteen rows by eight or sixteen columns with one `stmatrix`:

    lane l points to   row (l % 16), columns 8 (l // 16) + 0:8     of the warp's rows
    and holds          words (pairs) of registers 4 g + 2 h, h = 0, 1 and g = 0 or g = 0, 1

Eight of those rows are written at once; the tile's swizzle spreads them over all banks.  Where the
tile holds rows of the product as columns, it is the transposed form, and a lane points to a column.
Other elements, and tiles in which eight are no neighbours, take pairs, or one after another.

The whole tile is written: what lies out of bounds is left out by the copy, whose predicate alone
decides.  Only what would be read from elsewhere out of bounds is replaced by zero.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.vector_runs import is_aligned_run
from tvm_hopper.codegen_patches.hold import fence_code
from tvm_hopper.codegen_patches.ptx import matrix
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.requests.keys import DISJOINT_WRITES
from tvm_hopper.transforms.common.shared_pair_loads import load_pair
from tvm_hopper.transforms.wgmma import fragment_layout
from tvm_hopper.transforms.wgmma.fragment_loops import PAIR, Fragment, only_if

SIDE = 8  # rows and columns of a matrix
WARP_ROWS = 16  # of a subtile, that one warp holds
# Stores of a warp before which functions are computed: ptxas would compute those of the whole
# tile first, and store all of it at once. gelu after 8192x14336x4096 takes 0.6% less so, 0.4% by
# two (bfloat16; benchmarks.epilogues), and a tile without functions neither more nor less.
STORES_PER_GROUP = 4


class StagedFragment(Fragment):
    """An epilogue's nest that stores into a shared tile."""

    @property
    def best_run_length(self) -> int:
        """Neighbours that a lane's row would hold if the tile had them so."""
        return SIDE if dtype_bytes(self.dtype) == 2 else 2

    @property
    def shortfall(self) -> tuple[str, str, str] | None:
        """Say why stores are narrow, what wider ones need, what to do; None if they are wide."""
        if self.run_length == self.best_run_length:
            return None
        return (
            f"{self.run_length} elements at a time, as no more of a row or column of the product "
            f"are neighbours in {self.store.buffer.name}",
            f"{self.best_run_length} of them, at a multiple of that",
            "store to a tile with the product's own rows or columns",
        )

    def _choose_run_length(self) -> int:
        if self.best_run_length == SIDE and (self._is_run("column") or self._is_run("row")):
            return SIDE
        return 2 if self._is_run("column", 2) else 1

    def _is_run(self, along: str, length: int = SIDE) -> bool:
        """Tell whether elements of the product along one of its sides are neighbours."""
        start, e = ir.Var("start", "int32"), ir.Var("e", "int32")
        other = ir.Var("other", "int32")
        moving = start * length + e
        at = (other, moving) if along == "column" else (moving, other)
        return is_aligned_run(self.store.buffer, self._place(*at, {e: length}), e, length)

    def _place(self, row: Any, column: Any, extents: dict[Any, int]) -> list[Any]:
        """Return where the tile holds an element; `extents` are those of variables from 0 on."""
        values, analyzer = self._at(row, column), ir.ranges(extents)
        return [ir.simplify(ir.substitute(x, values), analyzer) for x in self.store.indices]

    def _loops(self) -> ir.Stmt:
        subtiles, groups = self.nest.rows // fragment_layout.SUBTILE_ROWS, self.nest.columns // SIDE
        if self.run_length == SIDE:
            wide = 2 - groups % 2  # matrices next to each other
            return ir.make_loop("subtile", subtiles, lambda subtile:
                ir.make_loop("g", groups // wide, lambda g:
                    ir.seq(self._fence(g), self._matrices(subtile, g * wide, wide)),
                    unroll=True), unroll=True)  # fmt: skip
        return ir.make_loop("subtile", subtiles, lambda subtile:
            ir.make_loop("g", groups, lambda g:
                ir.make_loop("h", 2, lambda h:
                    self._pair(subtile, 0, g, h), unroll=True),
                unroll=True), unroll=True)  # fmt: skip

    def _fence(self, g: Any) -> Any:
        """Keep what is computed after the stores before it."""
        if not ir.find_all(self.store.value, ir.Call):
            return None
        return only_if((g % STORES_PER_GROUP).equal(0), tirx.Evaluate(fence_code()))

    def _register(self, subtile: Any, chunk: Any, i: Any) -> Any:
        first = self.nest.row_start // fragment_layout.SUBTILE_ROWS
        # Eight columns are four registers, whichever instruction they are from.
        return self.layout.register(first + subtile, chunk, self.nest.column_start // 2 + i)

    def _element(
        self, subtile: Any, chunk: Any, g: Any, h: Any, e: Any, anywhere: bool = True
    ) -> tuple[ir.BufferStore, Any]:
        new, _ = super()._element(subtile, chunk, g, h, e, anywhere)
        analyzer = ir.ranges({h: 2, e: 2})
        indices = [ir.simplify(x, analyzer) for x in new.indices]
        return ir.BufferStore(new.buffer, new.value, indices), tirx.const(True, "bool")

    def _matrices(self, subtile: Any, first: Any, wide: int) -> ir.Stmt:
        """Store sixteen rows by `wide` times eight columns from `first` times eight on."""
        words_held = 2 * wide
        run = self._scratch("run", 2 * words_held)
        words = ir.new_buffer(f"{run.name}_words", (words_held,), "uint32", "local")
        compute = [
            self._two(subtile, first + g, h, run, 2 * (2 * g + h))
            for g in range(wide)
            for h in range(2)
        ]
        lane = self.lane % THREADS_PER_WARP
        row = subtile * fragment_layout.SUBTILE_ROWS + self.lane // THREADS_PER_WARP * WARP_ROWS
        column = first * SIDE
        transposed = not self._is_run("column")
        side = lane // SIDE  # which matrix: h first, then g
        column = column + (side // 2 * SIDE if wide > 1 else 0)
        if transposed:
            row, column = row + side % 2 * SIDE, column + lane % SIDE
        else:
            row = row + lane % WARP_ROWS
        indices = self._place(row, column, {})
        address = tirx.address_of(tirx.BufferLoad(self.store.buffer, indices))
        held = [tirx.BufferLoad(words, [i]) for i in range(words_held)]
        return ir.seq(
            compute,
            tirx.DeclBuffer(words, data=run.data),
            matrix.store(address, held, transposed),
        )

    def _two(self, subtile: Any, g: Any, h: Any, run: ir.Var, place: int) -> ir.Stmt:
        """Compute two neighbours; what they read of a shared tile is loaded as one vector."""
        values = [self._element(subtile, 0, g, h, x)[0].value for x in PAIR]
        loaded = load_pair(self.store.value, self._at, values[0])
        if loaded is not None:
            values = [loaded.in_value(value, x) for x, value in zip(PAIR, values, strict=True)]
        stores = [
            ir.BufferStore(run, value, [place + x]) for x, value in zip(PAIR, values, strict=True)
        ]
        if loaded is None:
            return ir.seq(stores)
        body = ir.seq(loaded.load, stores)
        return ir.opaque_block("pair", body, alloc_buffers=[loaded.registers])

    @property
    def _notes(self) -> dict[str, Any]:
        # Each element has one register, and each register one thread: see fragment_loops_plan.py.
        return {DISJOINT_WRITES: 1}
