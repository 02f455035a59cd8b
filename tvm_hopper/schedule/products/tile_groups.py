"""`tile_groups`: cut groups of rows of any length into tiles that a table describes.

    for e in range(8):
        for i in range(P[e + 1] - P[e]):
            C[P[e] + i, j] += A[P[e] + i, k] * B[e, j, k]
  ->
    for t in threads:                                    a kernel of its own
        tiles[0, t], tiles[1, t], tiles[2, t] = its group, rows from there on, first row
    tiles[3, 0] = how many tiles there are
    A_tiles[t, i, k] = if_then_else(tiles[2, t] + i < 4096, A[tiles[2, t] + i, k], 0)
    C_tiles[t, i, j] += A_tiles[t, i, k] * B[tiles[0, t], j, k]
    if i < tiles[1, t]: C[tiles[2, t] + i, j] = C_tiles[t, i, j]

A tile has rows of one group: its last one may have fewer, and loads rows of the next group, which
nobody stores. So there are at most as many tiles as rows fill, and one for each group. Persistent
thread blocks read how many there are.

No primitive cuts loops of such lengths. `hs.matmul` does this by itself; a trace of it replays on
`hs.tile_groups(mod, block, rows)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import IterVar

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.requests.keys import BY_DEVICE, ROW_TABLE
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.schedule import origins
from tvm_hopper.schedule.arguments import as_int, label

from .config import MatmulConfig
from .gather import excluded, plain_config
from .model import as_product, rank_both, with_tile
from .normalize import check_rewrite, with_functions
from .ragged_groups import Nest, RaggedGroups, find_groups, match_reader
from .replace_load import replace_load

MOST_ROWS = 256  # of a tile
TABLE_THREADS = 128
GROUP, LEFT, FIRST = 0, 1, 2  # rows of a table: a tile's group, its rows, where these begin


def tile_groups(mod: tvm.IRModule | tirx.PrimFunc, block: str, rows: int) -> Any:
    """Cut groups of rows of any length into tiles of one group each.

    Parameters
    ----------
    mod : IRModule or PrimFunc
        Plain loops, `for i in range(P[e + 1] - P[e])`; it is left as it is.
    block : str
        The multiply-add.
    rows : int
        Of a tile.

    Returns
    -------
    mod : IRModule or PrimFunc
        The same object where the block has no rows in groups.

    Raises
    ------
    ScheduleError
        `mod` is no module, there is no block of that name, or the message names the loop or the
        tensor of which it asks more.
    """
    check_rewrite("tile_groups", mod, block)
    rows = as_int("tile_groups", "rows", rows, 1, MOST_ROWS) or 1
    functions = {None: mod} if isinstance(mod, tirx.PrimFunc) else dict(mod.functions.items())
    for gv, func in functions.items():
        if not isinstance(func, tirx.PrimFunc) or (found := find_groups(func, block)) is None:
            continue
        new = _in_tiles(*found, rows)
        if gv is None:
            return new
        result = with_functions(mod, {gv: new})
        origins.note(result, mod)
        return result
    return mod


def in_groups(
    sch: s_tir.Schedule, block: Any, given: MatmulConfig
) -> tuple[s_tir.Schedule, MatmulConfig] | None:
    """Return a schedule of a grouped product in tiles, and its tile; None for other products.

    Raises
    ------
    ScheduleError
        What was requested does not go with groups.
    """
    name = label(sch, block).removeprefix("block ")
    function = sch.func_working_on
    if not name or function is None:
        return None
    target = function.name_hint
    found = find_groups(sch.mod[target], name)
    if found is None:
        return None
    if asked := excluded(given):
        raise cannot_schedule(
            f"block {name}",
            f"{asked}, and groups of rows whose lengths a tensor says",
            "tiles that one thread block sums, and whose rows threads store",
            "leave it out",
        )
    config = plain_config(given)
    if config.persistent is None:
        config = replace(config, persistent=BY_DEVICE)
    if config.tile is None:
        config = _with_tile(*found, config)
    assert config.tile is not None
    rows, *_ = config.tile
    if not isinstance(rows, int):
        return sch, config  # refused as sampled
    new = _in_tiles(*found, rows)
    fresh = s_tir.Schedule(with_functions(sch.mod, {sch.mod.get_global_var(target): new}))
    fresh.work_on(target)
    return fresh, config


def _with_tile(_: tirx.PrimFunc, found: RaggedGroups, given: MatmulConfig) -> MatmulConfig:
    """Choose a tile by the estimate of as many products of equal groups."""
    cut = _Cut(found, 1, "tiles")
    groups = int(found.rows.group.extent)
    store, last = found.product.store, (found.readers or (found.product,))[-1]
    column = next(x for x in cut.columns if x.loop_var.same_as(store.indices[-1]))
    deep = [ir.static_int(x.extent) or 1 for x in cut.summed]
    depth = 1
    for x in deep:
        depth *= x
    rows = ir.static_int(cut.most_rows)
    rows = -(-rows // groups) if rows is not None else None
    dtype = ir.dtype_of(found.load.source)
    out_dtype = ir.dtype_of(last.store.buffer)
    wanted = as_product(
        cut.most_rows if rows is None else rows, column.extent, depth, dtype, ("k", "k"), out_dtype, groups
    )
    best, *_ = rank_both(wanted, given, chip_of_target(), 1)
    return with_tile(given, best)


class _Cut:
    """Variables of a product in tiles, and the table that says what they are of the groups."""

    def __init__(self, found: RaggedGroups, rows: int, name: str) -> None:
        self.found, self.rows = found, rows
        product = found.product
        self.group, self.row = found.rows.group.loop_var, found.rows.row.loop_var
        summed = [
            product.at(x.var)
            for x in product.node.iter_vars
            if x.iter_type == IterVar.CommReduce
        ]
        self.summed = [x for x in product.loops if any(x.loop_var.same_as(y) for y in summed)]
        own = [found.rows.group, found.rows.row, *self.summed]
        self.columns = [x for x in product.loops if not any(x.same_as(y) for y in own)]
        groups = ir.cast_like(found.rows.group.extent, self.row)
        self.count = ir.simplify((self.most_rows + groups * (rows - 1)) // rows)
        self.stores = self._stores()
        self.firsts = self._find_firsts()
        shape = (FIRST + len(self.firsts) + 1, self.count)
        self.table = ir.new_buffer(name, shape, "int32", "global")

    @property
    def most_rows(self) -> Any:
        """Rows of all groups: each has an element of the output in each column."""
        store, total = self.found.product.store, ir.cast_like(1, self.row)
        moving = [x.loop_var for x in self.columns]
        for index, extent in zip(store.indices, store.buffer.shape, strict=True):
            if not ir.depends_on(index, moving):
                total = total * ir.cast_like(extent, self.row)
        return ir.simplify(total)

    def _stores(self) -> list[Any]:
        """Return the stores behind the product, in terms of its loops."""
        before, found = self.found.product.store, []
        for reader in self.found.readers:
            known = match_reader(reader, before, self.found.rows)
            before = ir.substitute(reader.store, known)
            found.append(before)
        return found

    def _find_firsts(self) -> list[Any]:
        """Return where rows of groups begin in tensors, each place once."""
        found: list[Any] = []
        parts = [self.found.load, self.found.product.store, *self.stores]
        loads = ir.find_all(parts, ir.TensorLoad)
        stores = [x for x in parts if isinstance(x, ir.BufferStore)]
        for access in (*loads, *stores):
            tensor = access.buffer if isinstance(access, ir.BufferStore) else access.source
            for index in access.indices:
                if not ir.depends_on(index, [self.row]):
                    continue
                first = ir.simplify(index - ir.cast_like(self.row, index))
                moving = [x.loop_var for x in (*self.columns, *self.summed)]
                if ir.depends_on(first, [self.row, *moving]):
                    raise cannot_schedule(
                        f"block {self.found.product.node.name_hint}, tensor {tensor.name}",
                        f"the index {index}, which loop {self.row.name} moves",
                        "rows of a group one after another",
                        "copy the rows into such an order in a separate function",
                    )
                if self._number(first, found) is None:
                    found.append(first)
        return found

    def _number(self, first: Any, firsts: list[Any]) -> int | None:
        same = (i for i, x in enumerate(firsts) if tvm_ffi.structural_equal(x, first))
        return next(same, None)

    def of_tile(self, what: int, tile: Any) -> Any:
        """Return what the table says of a tile, as an index."""
        found = tirx.BufferLoad(self.table, [ir.cast_like(what, tile), tile])
        return ir.cast_like(found, self.row)

    @property
    def dtype(self) -> str:
        """Type of indices."""
        return ir.dtype_of(self.row)

    @property
    def outer(self) -> list[Any]:
        """The loops of the output but for those of groups and rows, as its dimensions follow."""
        indices = list(self.found.product.store.indices)

        def dimension(loop: Any) -> int:
            moved = [d for d, x in enumerate(indices) if ir.depends_on(x, [loop.loop_var])]
            return moved[0] if moved else -1

        return sorted(self.columns, key=dimension)

    @property
    def extents(self) -> list[Any]:
        """Of the output of tiles."""
        *others, last = [x.extent for x in self.outer]
        return [self.count, *others, self.rows, last]

    def placed(self, expr: Any, tile: Any, place: Any, ours: Sequence[Any] = ()) -> Any:
        """Return an expression of the product's loops for a row of a tile.

        Tensors of tiles, `ours`, are indexed by the tile and the row in it.
        """
        known = {self.group: self.of_tile(GROUP, tile)}
        in_tile = {self.group: tile, self.row: place}

        def at(index: Any) -> Any:
            if not ir.depends_on(index, [self.row]):
                return ir.substitute(ir.mutate(index, visits), known)
            first = ir.simplify(index - ir.cast_like(self.row, index))
            number = self._number(first, self.firsts)
            assert number is not None, "all indices were looked at"
            return ir.cast_like(self.of_tile(FIRST + number, tile) + place, index)

        def load(node: Any, _: Any) -> Any:
            if any(node.source.same_as(x) for x in ours):
                return ir.substitute(node, in_tile)
            return tirx.BufferLoad(node.source, [at(x) for x in node.indices])

        visits = [(ir.TensorLoad, load)]
        if isinstance(expr, ir.BufferStore):
            value = ir.substitute(ir.mutate(expr.value, visits), known)
            return ir.BufferStore(expr.buffer, value, [at(x) for x in expr.indices])
        return ir.substitute(ir.mutate(expr, visits), known)


def _in_tiles(func: tirx.PrimFunc, found: RaggedGroups, rows: int) -> tirx.PrimFunc:
    """Rewrite a function."""
    root = func.body.block
    names = ir.Names(str(x.name) for x in (*func.params, *root.alloc_buffers))
    cut = _Cut(found, rows, names.take("tiles"))
    load, operand = _load_tiles(cut, names)
    product, total = _multiply(cut, operand, names)
    new = [_fill_table(cut), load, product, _store(cut, total)]
    old = [found.product.stmt, *(x.stmt for x in found.readers)]
    body: list[Any] = []
    for stmt in ir.statements(root.body):
        if stmt.same_as(found.product.stmt):
            body += new
        elif not any(stmt.same_as(x) for x in old):
            body.append(stmt)
    gone = [x.store.buffer for x in (found.product, *found.readers[:-1])] if found.readers else []
    kept = [x for x in root.alloc_buffers if not any(x.same_as(y) for y in gone)]
    buffers = [*kept, cut.table, operand.source, total.source]
    block = ir.with_block(root, body=ir.seq(*body), alloc_buffers=buffers)
    return func.with_body(ir.SBlockRealize(func.body.iter_values, func.body.predicate, block))


def _fill_table(cut: _Cut) -> ir.Stmt:
    """Build the kernel that finds each tile's group: a thread for a tile counts those in front."""
    group, groups = cut.group, cut.found.rows.group.extent
    tile, e = ir.Var("v_tile", "int32"), ir.Var("e", "int32")
    begin = ir.new_buffer("begin", (1,), "int32", "local")  # of a group's tiles
    here = {group: ir.cast_like(e, group)}
    count = tirx.max(_int32(ir.substitute(cut.found.rows.count, here)), 0)
    before = tirx.BufferLoad(begin, [0])
    tiles = (count + (cut.rows - 1)) // cut.rows
    row = (tile - before) * cut.rows
    firsts = [_int32(ir.substitute(x, here)) + row for x in cut.firsts]

    def note(values: list[Any]) -> list[ir.Stmt]:
        return [ir.BufferStore(cut.table, x, [i, tile]) for i, x in enumerate(values)]

    is_here = tirx.And(before <= tile, tile < before + tiles)
    search = ir.For(e, 0, groups, ir.ForKind.SERIAL, ir.seq(
        ir.IfThenElse(is_here, ir.seq(*note([e, count - row, *firsts])), None),
        ir.BufferStore(begin, before + tiles, [0]),
    ))  # fmt: skip
    in_use = ir.BufferStore(
        cut.table, tirx.min(before, _int32(cut.count)), [FIRST + len(cut.firsts), 0]
    )
    zeros = note([tirx.IntImm("int32", 0)] * (FIRST + len(cut.firsts)))
    block = ir.SBlock(
        [_spatial(tile, cut.count)],
        [],
        [],
        str(cut.table.name),
        ir.seq(
            ir.BufferStore(begin, 0, [0]),
            *zeros,
            search,
            ir.IfThenElse(tile.equal(0), in_use, None),
        ),
        None,
        [begin],
    )
    blocks = (_int32(cut.count) + (TABLE_THREADS - 1)) // TABLE_THREADS
    x, y = ir.Var("thread", "int32"), ir.Var("block", "int32")
    place = y * TABLE_THREADS + x
    stmt: Any = ir.SBlockRealize([place], place < _int32(cut.count), block)
    for var, extent, tag in ((x, TABLE_THREADS, "threadIdx.x"), (y, blocks, "blockIdx.x")):
        axis = IterVar(None, ir.Var("", "int32"), IterVar.ThreadIndex, tag)
        stmt = ir.For(var, 0, ir.simplify(extent), ir.ForKind.THREAD_BINDING, stmt, axis)
    return stmt


def _int32(value: Any) -> Any:
    return ir.as_int32(value)


def _spatial(var: Any, extent: Any) -> IterVar:
    zero = tirx.IntImm(ir.dtype_of(var), 0)
    domain = tvm.ir.Range.from_min_extent(zero, ir.cast_like(extent, var))
    return IterVar(domain, var, IterVar.DataPar)


def _load_tiles(cut: _Cut, names: ir.Names) -> tuple[ir.Stmt, Any]:
    """Return the block of tiles of the operand, and its element in terms of a tile's loops."""
    load = cut.found.load
    tile, place = ir.Var("t", cut.dtype), ir.Var("i", cut.dtype)
    loops = [x for x in (*cut.columns, *cut.summed) if ir.depends_on(list(load.indices), [x.loop_var])]
    fresh = {x.loop_var: ir.Var(str(x.loop_var.name), ir.dtype_of(x.loop_var)) for x in loops}
    source = ir.substitute(cut.placed(load, tile, place), fresh)
    inside = [
        index < ir.cast_like(extent, index)
        for index, old, extent in zip(source.indices, load.indices, source.source.shape, strict=True)
        if ir.depends_on(old, [cut.row])
    ]
    name = names.take(f"{load.source.name}_tiles")
    variables = [tile, place, *fresh.values()]
    extents = [cut.count, cut.rows, *(x.extent for x in loops)]
    tiles = ir.new_buffer(name, tuple(extents), ir.dtype_of(load.source), "global")
    dtype = ir.dtype_of(load.source)
    value = ir.call_op(
        "prim.if_then_else", dtype, ir.conjunction(inside), source, tirx.const(0, dtype)
    )
    nest = ir.block_nest(name, variables, extents, ir.BufferStore(tiles, value, variables))
    return nest, tirx.BufferLoad(tiles, [cut.group, cut.row, *(x.loop_var for x in loops)])


def _multiply(cut: _Cut, operand: Any, names: ir.Names) -> tuple[ir.Stmt, Any]:
    """Return the product of tiles, and its element in terms of a tile's loops."""
    product, tile, place = cut.found.product, ir.Var("t", cut.dtype), ir.Var("i", cut.dtype)
    outer, summed, extents = cut.outer, cut.summed, cut.extents
    old = [cut.group, *(x.loop_var for x in outer[:-1]), cut.row, outer[-1].loop_var]
    name = names.take(f"{product.store.buffer.name}_tiles")
    total = ir.new_buffer(name, tuple(extents), ir.dtype_of(product.store.buffer), "global")
    element = tirx.BufferLoad(total, old)
    value = replace_load(product.store.value, cut.found.load, operand)
    value = replace_load(value, tirx.BufferLoad(product.store.buffer, product.store.indices), element)
    start = product.at(product.node.init.value)
    loops = [*outer, *summed]
    fresh = {x.loop_var: ir.Var(str(x.loop_var.name), ir.dtype_of(x.loop_var)) for x in loops}
    ours = [operand.source, total]
    variables = [ir.substitute(x, {cut.group: tile, cut.row: place, **fresh}) for x in old]

    def here(expr: Any) -> Any:
        return ir.substitute(cut.placed(expr, tile, place, ours), fresh)

    axes = [_spatial(x, n) for x, n in zip(variables, extents, strict=True)]
    for x in summed:
        axis = _spatial(fresh[x.loop_var], x.extent)
        axes.append(IterVar(axis.dom, axis.var, IterVar.CommReduce))
    new = ir.BufferStore(total, here(value), variables)
    block = ir.with_block(
        product.node,
        iter_vars=axes,
        reads=ir.read_regions([new.value], without=total),
        writes=[ir.element_region(total, variables)],
        body=new,
        init=ir.BufferStore(total, here(start), variables),
    )
    stmt: ir.Stmt = ir.SBlockRealize([x.var for x in axes], True, block)
    stmt = _with_own_loops(stmt, axes)
    return stmt, element


def _with_own_loops(realize: Any, axes: list[IterVar]) -> ir.Stmt:
    """Put a loop around a block for each of its variables."""
    loops = [ir.Var(str(x.var.name), ir.dtype_of(x.var)) for x in axes]
    stmt: ir.Stmt = ir.SBlockRealize(loops, True, realize.block)
    for loop, x in reversed(list(zip(loops, axes, strict=True))):
        stmt = ir.For(loop, x.dom.min, x.dom.extent, ir.ForKind.SERIAL, stmt)
    return stmt


def _store(cut: _Cut, element: Any) -> ir.Stmt:
    """Return the block that stores the rows of a tile that are its group's.

    What it reads of the table is not declared: TVM moves no block to a tile that reads what another
    kernel wrote.
    """
    product, tile, place = cut.found.product, ir.Var("t", cut.dtype), ir.Var("i", cut.dtype)
    value: Any = element
    before, last = product.store, product.store
    for store in cut.stores:
        old = tirx.BufferLoad(before.buffer, before.indices)
        value = _replace_reads(store.value, old, value)
        before = last = store
    store = ir.BufferStore(last.buffer, value, last.indices)
    fresh = {x.loop_var: ir.Var(str(x.loop_var.name), ir.dtype_of(x.loop_var)) for x in cut.outer}
    new = ir.substitute(cut.placed(store, tile, place, [element.source]), fresh)
    old_axes = [cut.group, *(x.loop_var for x in cut.outer[:-1]), cut.row, cut.outer[-1].loop_var]
    variables = [ir.substitute(x, {cut.group: tile, cut.row: place, **fresh}) for x in old_axes]
    axes = [_spatial(x, n) for x, n in zip(variables, cut.extents, strict=True)]
    tables = [cut.table]
    reads = [x for x in ir.read_regions([new.value]) if not any(x.source.same_as(y) for y in tables)]
    left = cut.of_tile(LEFT, tile)
    block = ir.SBlock(
        axes,
        reads,
        [ir.element_region(new.buffer, list(new.indices))],
        f"{new.buffer.name}_store",
        ir.IfThenElse(place < left, new, None),
        annotations={ROW_TABLE: str(cut.table.name)},
    )
    return _with_own_loops(ir.SBlockRealize(variables, True, block), axes)


def _replace_reads(value: Any, old: Any, new: Any) -> Any:
    """Read something else where an expression reads a tensor, at whatever equal place."""

    def visit(load: Any, mutator: Any) -> Any:
        return new if load.source.same_as(old.source) else mutator.default_mutate(load)

    return ir.mutate(value, [(ir.TensorLoad, visit)])
