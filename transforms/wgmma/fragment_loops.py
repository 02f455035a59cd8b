"""Loops over a warp group's registers instead of rows and columns of the tiles that they hold.

Used by LowerWgmma for fills, and by fragment_global_stores.py and fragment_shared_stores.py for
epilogues.  A thread holds two neighbours of every eight columns, in registers 4 g + 2 h and 4 g + 2
h + 1. They are stored one by one, if the two may be in bounds apart or not aligned together, else
as a pair.

The two of a pair are two statements. The CUDA compiler does not unroll a loop with `D = float(S) -
acc` and a 16-bit S (inline assembly), and the accumulator goes to local memory (NVRTC, nvcc 13.0:
368 bytes for 64 registers).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.column_reads import take_branches
from tvm_hopper.analysis.vector_runs import shared_condition
from tvm_hopper.codegen_patches.hold import fence_code, hold_all
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS

from . import fragment_layout
from .epilogue_prefetch import PrefetchedVector, element_ahead, hold_pairs
from .fragment_layout import AccumulatorLayout, FragmentTile
from .fragment_loops_plan import FragmentNest
from .paired_update_loads import KEEP, load_old

PAIR = (0, 1)  # the two elements, see the module's docstring
# CUDA's text for these has a branch-free case for each result that it would round wrongly. ptxas
# computes them for the whole tile at once, and spills (nvcc 13.0: 1694 bytes after 128 x 256).
LARGE_OF_FLOAT16 = tuple(f"tirx.{x}" for x in ("exp", "exp10", "log", "log2", "log10"))


class Fragment:
    """A fill's nest over registers, and what stores have in common: `emit()` builds its loops."""

    def __init__(
        self,
        nest: FragmentNest,
        tiles: tuple[FragmentTile, ...],
        thread: ir.Var,
        held: bool = False,
        in_parts: bool = False,
    ) -> None:
        self.nest, self.tiles = nest, tiles  # the first one is the target, if that is a tile
        self.tile, self.layout = tiles[0], tiles[0].layout
        self.held = held  # what a fill sets stays before what follows, see LowerWgmma
        self.in_parts = in_parts  # blocks distribute the one loop over registers, see LowerSplitK
        self.store = nest.realize.block.body
        self.lane = thread % WARP_GROUP_THREADS
        self.is_fill = self.store.buffer.same_as(self.tile.buffer)
        self.dtype = ir.dtype_of(self.store.buffer)
        self.ahead: tuple[PrefetchedVector, ...] = ()
        self.scratch: list[ir.Var] = []
        self.run_length = self._choose_run_length()  # neighbours that a store writes: 8, 2 or 1

    @property
    def shortfall(self) -> tuple[str, str, str] | None:
        """Say why stores are narrow, what wider ones need, what to do; None if they are wide."""
        return None

    def _choose_run_length(self) -> int:
        """Choose how many neighbours one statement writes: of registers one."""
        return 1

    def emit(self) -> ir.Stmt:
        """Choose the widest store that is right for the whole nest."""
        own = [self.nest.row.loop_var, self.nest.column.loop_var]
        if self.is_fill and not ir.depends_on(self.store.value, own):
            value = self._as_register(self.store.value)
            fill = ir.make_loop(
                "i",
                self.layout.count,
                lambda i: ir.BufferStore(self.tile.registers, value, [i]),
                unroll=True,
            )
            return ir.seq(fill, self._kept())
        return self._block(ir.seq(hold_pairs(self.ahead), self._loops(), self._kept()))

    def _loops(self) -> ir.Stmt:
        return self._over_registers(8, self._pair)

    def _over_registers(self, step: int, emit_one: Callable[..., ir.Stmt]) -> ir.Stmt:
        """Build loops over subtiles, instructions, `step` columns of one, and halves of rows."""
        width = self.width
        subtiles, chunks = self.layout.m // fragment_layout.SUBTILE_ROWS, self.nest.columns // width
        return ir.make_loop("subtile", subtiles, lambda subtile:
            ir.make_loop("chunk", chunks, lambda chunk:
                ir.make_loop("g", width // step, lambda g:
                    ir.seq(self._fence_functions(), ir.make_loop("h", 2, lambda h:
                        emit_one(subtile, chunk, g, h), unroll=True)),
                    unroll=True), unroll=True), unroll=True)  # fmt: skip

    def _fence_functions(self) -> ir.Stmt | None:
        """Keep what takes many registers behind that of the elements before it."""
        tables = ir.find_all(self.store.value, ir.TensorLoad, self._is_table)
        takes_many = self.nest.reads and tables
        takes_many = takes_many or ir.find_all(self.store.value, ir.Call, _is_large)
        if self.in_parts or not takes_many:
            return None
        return tirx.Evaluate(fence_code())

    def _is_table(self, load: ir.TensorLoad) -> bool:
        """Tell a load from memory by row and column, as of rotary embedding: all at once spill."""
        own = [self.nest.row.loop_var], [self.nest.column.loop_var]
        by_both = all(ir.depends_on(list(load.indices), x) for x in own)
        return by_both and self._tile_of(load) is None

    @property
    def width(self) -> int:
        """Columns that are counted together: those of an instruction, or all."""
        if self.nest.reads or not isinstance(self.layout, AccumulatorLayout):
            return self.nest.columns
        return self.layout.width

    def _kept(self) -> Any:
        """Hold every register that a fill has set."""
        return hold_all(self.tile.registers) if self.is_fill and self.held else None

    def _block(self, loops: ir.Stmt) -> ir.SBlockRealize:
        read, name = self._regions(), self.nest.realize.block.name_hint
        if self.is_fill:
            return ir.opaque_block(name, loops, writes=read)
        written = ir.full_region(self.store.buffer)
        more = {"alloc_buffers": self.scratch, "annotations": self._notes}
        return ir.opaque_block(name, loops, reads=read, writes=[written], **more)

    def _regions(self) -> list[Any]:
        """Return the registers of all tiles that the nest touches."""
        return [ir.full_region(tile.registers) for tile in self.tiles]

    @property
    def _notes(self) -> dict[str, Any]:
        """Annotations of the block, for the passes after it."""
        return {}

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
        analyzer = ir.ranges({h: 2})
        row = ir.simplify(fragment_layout.row(h, self.lane), analyzer)
        return subtile * fragment_layout.SUBTILE_ROWS + row

    def _at(self, row: Any, column: Any) -> dict[Any, Any]:
        units = {loop.loop_var: 0 for loop in self.nest.units}
        return {self.nest.row.loop_var: row, self.nest.column.loop_var: column, **units}

    def _element(
        self, subtile: Any, chunk: Any, g: Any, h: Any, e: Any, anywhere: bool = False
    ) -> tuple[ir.BufferStore, Any]:
        """Return the store of register 4 g + 2 h + e and the condition under which it runs.

        Its value may be computed where the condition does not hold if `anywhere` is requested.
        """
        i = g * 4 + h * 2 + e
        analyzer = ir.ranges({h: 2, e: 2})
        column = ir.simplify(fragment_layout.column(i, self.lane), analyzer)
        column = chunk * self.width + column
        values = self._at(self._row(subtile, h), column)
        store = self._readable_anywhere() if anywhere else self.store

        def load(node: ir.TensorLoad, mutator: Any) -> Any:
            eight = chunk * (self.width // 8) + g
            if (found := element_ahead(self.ahead, node, eight, e)) is not None:
                return found
            if (tile := self._tile_of(node)) is None:
                return mutator.default_mutate(node)
            place = self._place_of(tile, node, subtile, chunk, g, h, e)
            value = tirx.BufferLoad(tile.registers, [place])
            if tile.register_dtype != tile.dtype:
                value = tirx.reinterpret(tile.dtype, value)
            return _as(ir.dtype_of(node.source), value)

        if any(None in read.pair for _, read in self.nest.reads):  # the two of a pair read apart
            store = take_branches(store, lambda x: _constant(ir.substitute(x, values), analyzer))
        # The program reads an accumulator in the type that it had there.
        new = ir.substitute(ir.mutate(store, [(ir.TensorLoad, load)]), values)
        if self.is_fill:
            place = ir.simplify(self._register(subtile, chunk, i))
            new = ir.BufferStore(self.tile.registers, self._as_register(new.value), [place])
        return new, ir.substitute(self.nest.predicate, values)

    def _tile_of(self, load: ir.TensorLoad) -> FragmentTile | None:
        """Return the register tile that a load reads; None if it reads memory."""
        return next((x for x in self.tiles if load.source.same_as(x.buffer)), None)

    def _place_of(
        self,
        tile: FragmentTile,
        load: ir.TensorLoad,
        subtile: Any,
        chunk: Any,
        g: Any,
        h: Any,
        e: Any,
    ) -> Any:
        """Return the register that a read of a tile means, of those of eight columns."""
        if isinstance(tile.layout, fragment_layout.RowLayout):
            begin = self.nest.row_start // fragment_layout.SUBTILE_ROWS
            return ir.simplify(tile.layout.register(begin + subtile, 0, h * 2))
        read = self.nest.read_of(load)
        if read is None:
            return ir.simplify(self._register(subtile, chunk, g * 4 + h * 2 + e))
        # Eight columns are four registers, whichever instruction they are from.
        place = read.first(g) // 2 + h * 2 + read.neighbour(e)
        return ir.simplify(self._register(subtile, 0, place))

    def _register(self, subtile: Any, chunk: Any, i: Any) -> Any:
        return self.layout.register(subtile, chunk, i)

    def _readable_anywhere(self) -> ir.BufferStore:
        """Read the first element of a tensor where the predicate keeps the store from reading it.

        A condition around each value would be a branch, over which the assembler moves no load:
        each would be waited for by itself. Of a bias by columns each element is read by some row in
        bounds: a term that has no variable to do with an index says nothing about it.
        """
        predicate = self.nest.predicate

        def load(node: ir.TensorLoad, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            if self._tile_of(node) is not None:
                return node
            needed = ir.terms_about(predicate, node.indices)
            if ir.is_const(needed, 1):
                return node
            places = [tirx.Select(needed, x, ir.cast_like(0, x)) for x in node.indices]
            return tirx.BufferLoad(node.source, places)

        return ir.mutate(self.store, [(ir.TensorLoad, load)])

    def _as_register(self, value: Any) -> Any:
        """Convert an element of the accumulator to what a register holds."""
        value = _as(self.tile.dtype, value)
        if self.tile.register_dtype == self.tile.dtype:
            return value
        if isinstance(value, tirx.IntImm):  # CUDA's text of a reinterpretation takes an address
            return tirx.const(value.value % 2**32, self.tile.register_dtype)
        return tirx.reinterpret(self.tile.register_dtype, value)

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
        return only_if(shared_condition(condition, e, 2), both)

    def _one(self, subtile: Any, chunk: Any, g: Any, h: Any, e: int) -> ir.Stmt:
        """Store one element, or set one register, if it is in bounds."""
        new, condition = self._element(subtile, chunk, g, h, e)
        return only_if(condition, new)

    @property
    def is_update(self) -> bool:
        """Whether the store reads the element that it writes: no other thread may write it."""
        return not self.is_fill and bool(
            ir.find_all(
                self.store.value, ir.TensorLoad, lambda x: x.source.same_as(self.store.buffer)
            )
        )


def _constant(condition: Any, analyzer: sym.Analyzer) -> bool | None:
    """Return what a condition is; None if it is no constant."""
    value = ir.static_int(ir.simplify(condition, analyzer))
    return None if value is None else bool(value)


def _is_large(call: ir.Call) -> bool:
    return ir.dtype_of(call) == "float16" and getattr(call.op, "name", "") in LARGE_OF_FLOAT16


def only_if(condition: Any, body: ir.Stmt) -> ir.Stmt:
    """Put a condition around a statement, unless it always holds."""
    return body if ir.is_const(condition, 1) else ir.IfThenElse(condition, body, None)


def _as(dtype: str, value: Any) -> Any:
    return value if ir.dtype_of(value) == dtype else tirx.Cast(dtype, value)
