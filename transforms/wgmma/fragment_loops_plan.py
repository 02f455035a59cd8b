"""Find loops over elements of accumulators, to run over registers instead.

    for i, j in grid(64, 256): acc[i, j] = 0                                       fill
    for i, j in grid(64, 256): C[m + i, n + j] = f(acc[i, j])                      to global memory
    for part in range(2):                                                          to a shared tile
        for i, j in grid(64, 128): tile[i, j] = f(acc[i, part * 128 + j])
        for i, j in grid(64, 128): C[m + i, n + part * 128 + j] = tile[i, j]

    for i, j in grid(64, 256): C[m + i, n + j] = f(acc[i, j], other[i, j])         of two products

    for i, j in grid(64, 128):                                                     of two places
        C[m + i, n + j] = f(acc[i, j // 8 * 16 + j % 8], acc[i, j // 8 * 16 + j % 8 + 8])

    for i, j in grid(64, 256): S[i, j] = f(S[i, j], acc[i, j])                     to registers
    for i, j in grid(64, 256): Q[i] = max(Q[i], acc[i, j])                         of rows

Statements of several register tiles have the elements of one layout (register_tiles.py).

A tile in shared memory has to be one that asynchronous copies empty, and whose elements come from
one nest alone: then the whole of it is written, and the copy's predicate says what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.column_reads import ColumnRead, read_columns
from tvm_hopper.analysis.divisors import divides
from tvm_hopper.analysis.injective import is_injective
from tvm_hopper.analysis.updates import find_update
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts import wgmma
from tvm_hopper.requests.keys import ROW_TABLE, TAKES_PLACE
from tvm_hopper.transforms.common.multiply_add import MultiplyAdd
from tvm_hopper.transforms.common.transfer import SHARED, find_transfers

from .register_tiles import HeldTile, accesses_of, touched

ROW_OPERATIONS = ("add", "max", "min")  # by which elements of a row are combined
WORDS = ("float32", "int32", "uint32")  # that threads of a row exchange
STEPS = (wgmma.INSTRUCTION_M, 8)  # rows and columns that registers come in


@dataclass(frozen=True)
class FragmentNest:
    """A loop nest over elements of accumulators (fill or epilogue), to run over registers.

    `accumulators` are those that it touches; of these the first one is written if any is. Where it
    takes a part of them alone, that begins at `row_start` and `column_start`. Where it takes each
    element from several places, `reads` has them, by the column's index.
    """

    nest: ir.Stmt
    realize: ir.SBlockRealize
    row: ir.For
    column: ir.For
    units: tuple[ir.For, ...]
    row_start: Any
    column_start: Any
    parts: tuple[ir.For, ...]  # loops around it that say which part
    reads: tuple[tuple[str, ColumnRead], ...] = ()
    few_rows: bool = False  # its loop ends before the rows of the accumulator do
    accumulators: tuple[ir.Var, ...] = ()
    row_tiles: tuple[ir.Var, ...] = ()  # those of them that have an element for each row

    @property
    def is_over_rows(self) -> bool:
        """Whether it touches elements of rows alone."""
        return len(self.row_tiles) == len(self.accumulators)

    @property
    def reduces_rows(self) -> bool:
        """Whether it combines the elements of a row."""
        return not self.is_over_rows and any(self.target.same_as(x) for x in self.row_tiles)

    @property
    def predicate(self) -> Any:
        """Under which condition an element is stored: that of the block, and of fewer rows."""
        given = self.realize.predicate
        if not self.few_rows:
            return given
        below = self.row.loop_var < self.row.extent
        return below if ir.is_const(given, 1) else tirx.And(given, below)

    @property
    def uniform_predicate(self) -> list[Any]:
        """The terms of the block's condition that no element has to do with."""
        own = [x.loop_var for x in (self.row, self.column, *self.units, *self.parts)]
        return [x for x in ir.conjuncts(self.realize.predicate) if not ir.depends_on(x, own)]

    def without(self, terms: list[Any]) -> FragmentNest:
        """Return the nest without some terms of its block's condition."""
        if not terms:
            return self
        kept = [x for x in ir.conjuncts(self.realize.predicate) if not any(x is y for y in terms)]
        realize = ir.SBlockRealize(
            self.realize.iter_values, ir.conjunction(kept), self.realize.block
        )
        return replace(self, realize=realize)

    @property
    def target(self) -> ir.Var:
        """The buffer that its store writes."""
        return self.realize.block.body.buffer

    def read_of(self, load: ir.TensorLoad) -> ColumnRead | None:
        """Return which columns a load reads, None if it reads whole accumulators."""
        known = dict(self.reads)
        return next((known[str(x)] for x in load.indices if str(x) in known), None)

    @property
    def rows(self) -> int:
        """Rows of the accumulator that it takes."""
        return int(self.row.extent)

    @property
    def columns(self) -> int:
        """Columns of the accumulator that it takes, or of what it makes of several."""
        return int(self.column.extent)


def find_fragment_nests(
    kernel: ir.For, products: tuple[MultiplyAdd, ...], tiles: tuple[HeldTile, ...]
) -> tuple[FragmentNest, ...]:
    """Return the nests over the register tiles of a kernel, in order.

    Other statements that touch one are refused.
    """
    nests: list[FragmentNest] = []
    seen: set[Any] = set()
    for loop in ir.find_all(kernel, ir.For, lambda x: x.kind != ir.ForKind.THREAD_BINDING):
        loops, body = ir.loop_nest(loop)
        if not isinstance(body, ir.SBlockRealize) or body in seen:
            continue
        if not isinstance(body.block.body, ir.BufferStore):
            continue
        if found := touched(body.block.body, tiles):
            seen.add(body)
            if any(ir.uses(x.block, loops[0].loop_var) for x in products):
                continue
            whole = [x for x in found if not x.is_rows]
            nest = (
                _fragment_nest(kernel, loop, loops, body, whole[0])
                if whole
                else _row_nest(loop, loops, body, found[0])
            )
            rows = tuple(x.buffer for x in found if x.is_rows)
            nests.append(replace(nest, accumulators=tuple(x.buffer for x in found), row_tiles=rows))
    for tile in tiles:
        _check_no_other_use(kernel, tile.buffer, products, nests)
        _check_statements(kernel, tile, products, nests)
    for nest in nests:
        _check_store(kernel, nest)
        if ir.is_shared(nest.target):
            _check_staging(kernel, nest)
    return tuple(nests)


def _fragment_nest(
    kernel: ir.For,
    nest: ir.For,
    loops: list[ir.For],
    realize: ir.SBlockRealize,
    tile: HeldTile,
) -> FragmentNest:
    store = realize.block.body
    accumulator, sides = tile.buffer, tile.sides
    accesses = accesses_of(accumulator, store)
    found = {tuple(str(i) for i in access) for access in accesses}
    axes = [loop for loop in loops if not ir.is_const(loop.extent, 1)]
    units = tuple(loop for loop in loops if ir.is_const(loop.extent, 1))
    wanted = [x for x in accesses[0] if not ir.is_const(x, 0)]
    by_var = [loop for x in wanted for loop in axes if ir.depends_on(x, [loop.loop_var])]
    plain = len(found) == 1 and len(axes) == len(wanted) == len(by_var) == 2
    starts = [ir.simplify(x - y.loop_var) for x, y in zip(wanted, by_var, strict=False)]
    may_be_part = ir.is_shared(store.buffer) or store.buffer.same_as(accumulator)
    plain = plain and all(
        _takes(x, start, side, step, may_be_part)
        for x, start, side, step in zip(by_var, starts, sides, STEPS, strict=True)
    )
    if not plain and not store.buffer.same_as(accumulator):
        several = _gathered(kernel, nest, realize, axes, units, accumulator, sides)
        if several is not None:
            return several
    if not plain:
        raise cannot_lower(
            f"block {realize.block.name_hint}",
            f"loops {[f'{x.loop_var.name}<{x.extent}' for x in loops]} over accumulator elements "
            f"{sorted(found)}",
            f"one loop over {sides[0]} rows and one over {sides[1]} columns, element by element",
            "leave the loops of the fill and of the epilogue as they are: the lowering distributes "
            "registers",
        )
    row, column = by_var
    parts = _part_loops(kernel, realize, starts)
    row_start, column_start = starts
    return FragmentNest(nest, realize, row, column, units, row_start, column_start, parts)


def _row_nest(
    nest: ir.For, loops: list[ir.For], realize: ir.SBlockRealize, tile: HeldTile
) -> FragmentNest:
    """Return a nest over elements of rows."""
    store = realize.block.body
    units = tuple(loop for loop in loops if ir.is_const(loop.extent, 1))
    rows = [loop for loop in loops if not ir.is_const(loop.extent, 1)]
    accesses = accesses_of(tile.buffer, store)
    indices = [x for y in accesses for x in y if not ir.is_const(x, 0)]
    if not rows and not indices:  # of one row TVM leaves no loop
        rows = [ir.For(ir.Var("row", "int32"), 0, 1, ir.ForKind.SERIAL, nest.body)]
        indices = [rows[0].loop_var] * len(accesses)
    extent = ir.static_int(rows[0].extent) if len(rows) == 1 else None
    is_plain = extent is not None and ir.is_const(rows[0].min, 0)
    each = is_plain and len(indices) == len(accesses)  # of a thread's own row
    each = each and all(rows[0].loop_var.same_as(x) for x in indices)
    if extent is None or extent > tile.sides[0] or not each:
        raise cannot_lower(
            f"block {realize.block.name_hint}",
            f"loops {[f'{x.loop_var.name}<{x.extent}' for x in loops]} over rows of registers "
            f"{tile.buffer.name}{indices[:1]}",
            f"one loop over {tile.sides[0]} rows",
            "leave the loops as TVM makes them: the lowering distributes rows",
        )
    column = ir.For(ir.Var("column", "int32"), 0, 1, ir.ForKind.SERIAL, nest.body)
    few_rows = extent < tile.sides[0]
    return FragmentNest(nest, realize, rows[0], column, units, 0, 0, (), few_rows=few_rows)


def _gathered(
    kernel: ir.For,
    nest: ir.For,
    realize: ir.SBlockRealize,
    axes: list[ir.For],
    units: tuple[ir.For, ...],
    accumulator: ir.Var,
    sides: tuple[int, int],
) -> FragmentNest | None:
    """Return a nest whose elements are each made of several of a row; None where it is none."""
    wanted = [access[-2:] for access in accesses_of(accumulator, realize.block.body)]
    if len(axes) not in (1, 2) or any(len(x) != 2 for x in wanted):
        return None
    (first, index), *_ = wanted
    columns = [loop for loop in axes if ir.depends_on(index, [loop.loop_var])]
    rows = [loop for loop in axes if loop not in columns]
    if len(columns) != 1 or not (rows or ir.is_const(first, 0)):
        return None
    (column,) = columns
    row, start = _row_of(rows, first, nest)
    may_be_part = ir.is_shared(realize.block.body.buffer)
    # With fewer rows than a tile has, TVM moves no more loops to the tile.
    few_rows = ir.is_const(start, 0) and (ir.static_int(row.extent) or sides[0]) < sides[0]
    whole = few_rows or _takes(row, start, sides[0], STEPS[0], may_be_part)
    if ir.depends_on(start, [x.loop_var for x in axes]) or not whole:
        return None
    reads = _column_reads(realize.block.body, accumulator, column)
    if reads is None:
        return None
    parts = _part_loops(kernel, realize, [start, *(x.start for x in reads.values())])
    found = tuple(reads.items())
    return FragmentNest(nest, realize, row, column, units, start, 0, parts, found, few_rows)


def _row_of(rows: list[ir.For], first: Any, nest: ir.For) -> tuple[ir.For, Any]:
    """Return the loop over rows, and where it begins."""
    if rows:
        (row,) = rows
        return row, ir.simplify(first - ir.cast_like(row.loop_var, first))
    # of one row TVM leaves no loop
    return ir.For(ir.Var("row", "int32"), 0, 1, ir.ForKind.SERIAL, nest.body), first


def _column_reads(
    store: ir.BufferStore, accumulator: ir.Var, column: ir.For
) -> dict[str, ColumnRead] | None:
    """Return how a nest reads columns of a row, each way once; None if a thread lacks some."""
    loads = ir.find_all(store.value, ir.TensorLoad, lambda x: x.source.same_as(accumulator))
    found = read_columns(store.value, lambda x: any(x.same_as(y) for y in loads), column)
    rows = {tuple(map(str, x.indices[:-1])) for x in loads}
    return found.segments[0].reads if len(found.segments) == 1 and len(rows) == 1 else None


def _takes(loop: ir.For, start: Any, side: int, step: int, may_be_part: bool) -> bool:
    """Tell whether a loop runs over a side of the accumulator, or over an equal part of it."""
    extent = ir.static_int(loop.extent)
    if extent == side and ir.is_const(start, 0):
        return True
    if extent is None or not may_be_part or side % extent or extent % step:
        return False
    return divides(extent, start)


def _part_loops(kernel: ir.For, realize: ir.SBlockRealize, starts: list[Any]) -> tuple[ir.For, ...]:
    """Return the loops that count parts; they will be unrolled, since registers have no index."""
    around = ir.find_all(kernel, ir.For, lambda x: ir.uses_node(x.body, realize))
    parts = tuple(loop for loop in around if ir.depends_on(starts, [loop.loop_var]))
    for loop in parts:
        if loop.kind != ir.ForKind.SERIAL or ir.static_int(loop.extent) is None:
            raise cannot_lower(
                f"block {realize.block.name_hint}",
                f"a part of the accumulator from {starts}, counted by loop {loop.loop_var.name} "
                f"of kind {ir.ForKind(loop.kind).name.lower()} over {loop.extent}",
                "a serial loop of known length, which can be unrolled: registers are named when "
                "the kernel is built",
                "split the store's own loop by a constant",
            )
    return parts


def _check_store(kernel: ir.For, nest: FragmentNest) -> None:
    """Refuse stores of several accumulator elements to the same address."""
    block, store = nest.realize.block, nest.realize.block.body
    indices = [str(x) for x in store.indices]
    own = [
        load
        for load in ir.find_all(store.value, ir.TensorLoad)
        if load.source.same_as(store.buffer) and [str(x) for x in load.indices] != indices
    ]
    fix = "reduce in a separate kernel"
    if own:
        raise cannot_lower(
            f"block {block.name_hint}",
            f"a read of other elements of {store.buffer.name} than the one it stores",
            "one element of the output for each of the accumulator's",
            fix,
        )
    if nest.reduces_rows:
        _check_reduction(nest)
        return
    indices, extents = list(store.indices), _iterations(kernel, nest)
    if not is_injective(indices, extents, nest.realize.predicate):
        raise cannot_lower(
            f"block {block.name_hint}",
            f"a store into {store.buffer.name}{list(store.indices)}, in which several elements of "
            "the product can meet",
            "one element of the output for each of the accumulator's, in all tiles",
            f"index the output by a permutation of the product's rows and columns, or {fix}",
        )


def _iterations(kernel: ir.For, nest: FragmentNest) -> dict[ir.Var, Any]:
    """Return the loops whose iterations may not store the same element, with their extents."""
    store, axes = nest.realize.block.body, [nest.row, nest.column]
    if not store.buffer.same_as(nest.accumulators[0]):  # each tile has registers of its own
        around = ir.find_all(kernel, ir.For, lambda loop: ir.uses_node(loop, nest.nest))
        axes += [
            loop
            for loop in around
            if (loop.kind == ir.ForKind.THREAD_BINDING and _shares(loop, store.buffer))
            or ir.depends_on(list(store.indices), [loop.loop_var])
        ]
    extents = {loop.loop_var: loop.extent for loop in axes}
    extents.update({loop.loop_var: loop.extent for loop in nest.units})
    if ROW_TABLE not in nest.realize.block.annotations:
        return extents
    tables = ir.find_all(list(store.indices), ir.TensorLoad)  # tiles have rows of their own there
    return {x: n for x, n in extents.items() if not ir.depends_on(tables, [x])}


def _check_reduction(nest: FragmentNest) -> None:
    """Refuse rows whose elements are combined by anything but one operation on words."""
    store = nest.realize.block.body
    update, dtype = find_update(store), ir.dtype_of(store.buffer)
    if update is None or update.operation not in ROW_OPERATIONS or dtype not in WORDS:
        raise cannot_lower(
            f"block {nest.realize.block.name_hint}",
            f"{store.buffer.name}{list(store.indices)} = {store.value} in {dtype}, of all elements "
            "of a row",
            f"{store.buffer.name} combined with a value by one of {', '.join(ROW_OPERATIONS)}, in "
            f"{' or '.join(WORDS)}",
            "compute the value first, or reduce in a separate kernel",
        )


def _shares(loop: ir.For, buffer: ir.Var) -> bool:
    """Tell whether what a loop is bound to has one buffer together: blocks have no shared one."""
    return not (ir.is_shared(buffer) and str(loop.thread_binding.thread_tag).startswith("block"))


def _check_staging(kernel: ir.For, nest: FragmentNest) -> None:
    """Refuse a shared tile that holds anything but this nest's elements, or goes elsewhere.

    An operand may have been copied there, whose place it takes (ReuseOperandTiles).
    """
    block, tile = nest.realize.block, nest.target
    copies = [x for x in find_transfers(kernel) if x.tile.buffer.same_as(tile)]
    others = [
        store
        for store in ir.find_all(kernel, ir.BufferStore, lambda x: x.buffer.same_as(tile))
        if not store.same_as(block.body)
    ]
    is_filled = bool(others) or any(copy.fills_shared for copy in copies)
    if not copies or (is_filled and TAKES_PLACE not in block.annotations):
        raise cannot_lower(
            f"block {block.name_hint}",
            f"a store of accumulator elements into {tile.name} in scope {tile.scope()!r}, which "
            + ("other statements fill too" if copies else "no asynchronous copy stores"),
            "a store into global memory, or into a tile that this block alone fills and that "
            "async_store empties",
            "inline what follows into the store (fuse_epilogue), then cache_write it and pass what "
            "that returns to async_store",
        )
    if ir.find_all(block.body.value, ir.TensorLoad, lambda x: x.source.same_as(tile)):
        raise cannot_lower(
            f"block {block.name_hint}",
            f"a read of {tile.name}, which it fills",
            "values of the accumulator and of tensors in global memory",
            "let the threads that hold the accumulator update a tensor in place: leave the tile, "
            "or store=, away",
        )


def _check_no_other_use(
    kernel: ir.For, accumulator: ir.Var, products: Sequence[MultiplyAdd], nests: list[FragmentNest]
) -> None:
    """Refuse accumulator accesses that are in no nest: their threads would see no element."""
    handled = [x.realize.block for x in nests] + [x.block for x in products]

    def rest(block: ir.SBlock) -> bool:
        inside = isinstance(block.body, ir.BufferStore) and ir.uses(block.body, accumulator)
        return inside and not any(
            block.same_as(x) or ir.find_all(x, ir.SBlock, block.same_as) for x in handled
        )

    for block in ir.find_all(kernel, ir.SBlock, rest):
        raise cannot_lower(
            f"block {block.name_hint}",
            f"an access of accumulator {accumulator.name} outside of loops over its elements",
            "loops over its rows and columns",
        )


def _check_statements(
    kernel: ir.For, tile: HeldTile, products: Sequence[MultiplyAdd], nests: list[FragmentNest]
) -> None:
    """Refuse what a warp group's threads would each do in full: they share fragments only."""
    accumulator = tile.buffer
    owners = [
        block
        for block in ir.find_all(kernel, ir.SBlock)
        if any(buffer.same_as(accumulator) for buffer in block.alloc_buffers)
    ]
    if not owners:
        raise cannot_lower(
            next(x.where for x in products if x.store.buffer.same_as(tile.like)),
            f"accumulator {accumulator.name} allocated outside of the kernel",
            "registers of a warp group",
            "reverse_compute_at the cache_write at the loop of the warp group",
        )
    for nest in nests:
        target = nest.target
        if not target.same_as(nest.accumulators[0]) and target.scope() not in (
            "",
            "global",
            SHARED,
        ):
            raise cannot_lower(
                f"block {nest.realize.block.name_hint}",
                f"a store of accumulator elements into {target.name} in scope {target.scope()!r}",
                "a store into global memory",
                "inline what follows into the store (fuse_epilogue)",
            )
    for part in ir.statements(owners[0].body):
        known = [*(x.realize for x in products), *(nest.realize for nest in nests)]
        if not any(ir.uses_node(part, realize) for realize in known) and not find_transfers(part):
            names = [b.name_hint for b in ir.find_all(part, ir.SBlock)] or [type(part).__name__]
            raise cannot_lower(
                f"block {names[0]}",
                "a statement next to the k loop that is no fill or store of the accumulator",
                "the accumulator's fill, the k loop and stores of its elements",
                "inline it into the store (fuse_epilogue), or make it a separate kernel",
            )
