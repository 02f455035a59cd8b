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

Rows that name their matrix each are sorted first (`sorted_rows.py`).

No primitive cuts loops of such lengths. `hs.matmul` does this by itself; a trace of it replays on
`hs.tile_groups(mod, block, rows)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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

from .axes import element_of_index
from .config import MatmulConfig
from .gather import excluded, plain_config
from .model import as_product, rank_both, with_tile
from .normalize import check_rewrite, with_functions
from .ragged_groups import RaggedGroups, find_groups, match_reader
from .replace_load import replace_load
from .ring_and_order import known
from .sorted_rows import sort_rows

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
        if not isinstance(func, tirx.PrimFunc):
            continue
        found = find_groups(sort_rows(func, block) or func, block)
        if found is None:
            continue
        new = _in_tiles(*found, rows)
        if gv is None:
            return new
        result = with_functions(mod, {gv: new})
        origins.note(result, mod)
        return result
    return mod


def in_groups(
    sch: s_tir.Schedule, block: Any, given: MatmulConfig, by_table: bool = False
) -> tuple[s_tir.Schedule, MatmulConfig] | None:
    """Return a schedule of a grouped product in tiles, and its tile; None for other products.

    With `by_table` it is one of rows that name their matrix each, and are sorted by it; None where
    what was requested does not go with groups.

    - raises ScheduleError: what was requested does not go with groups.
    """
    name = label(sch, block).removeprefix("block ")
    function = sch.func_working_on
    if not name or function is None:
        return None
    target = function.name_hint
    func = sch.mod[target]
    if by_table and (given.is_sampled or excluded(given)):
        return None
    if by_table and (func := sort_rows(func, name)) is None:
        return None
    found = find_groups(func, name)
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
        config = _with_tile(found[1], config)
    assert config.tile is not None
    rows, *_ = config.tile
    if not isinstance(rows, int):
        return sch, config  # refused as sampled
    new = _in_tiles(*found, rows)
    fresh = s_tir.Schedule(with_functions(sch.mod, {sch.mod.get_global_var(target): new}))
    fresh.work_on(target)
    return fresh, config


def _with_tile(found: RaggedGroups, given: MatmulConfig) -> MatmulConfig:
    """Choose a tile by the estimate of as many products of equal groups."""
    cut = _TiledGroups(found, 1, "tiles")
    groups = int(found.rows.group.extent)
    rows = ir.static_int(cut.most_rows)
    columns = ir.static_int(cut.outer[-1].extent)
    depth = math.prod(known(ir.static_int(x.extent)) for x in cut.summed)
    store = (cut.stores or [found.product.store])[-1]
    wanted = as_product(
        rows and -(-rows // groups),
        columns,
        depth,
        ir.dtype_of(found.load.source),
        ("k", "k"),
        ir.dtype_of(store.buffer),
        groups,
    )
    best, *_ = rank_both(wanted, given, chip_of_target(), 1)
    return with_tile(given, best)


class _TiledGroups:
    """Variables of a product in tiles, and the table that says what they are of the groups.

    - `outer`, `summed`: loops of the output, as its dimensions follow, but for groups and rows;
      loops of the sum.
    - `count`: how many tiles there may be.
    - `stores`: what is stored of the product, one nest behind another, in terms of its loops.
    - `firsts`: where rows of a group begin in tensors, in terms of the group.
    """

    def __init__(self, found: RaggedGroups, rows: int, name: str) -> None:
        self.found, self.rows = found, rows
        product = found.product
        self.group, self.row = found.rows.group.loop_var, found.rows.row.loop_var
        axes = product.node.iter_vars
        summed = [product.at(x.var) for x in axes if x.iter_type == IterVar.CommReduce]
        self.summed = [x for x in product.loops if any(x.loop_var.same_as(y) for y in summed)]
        own = [found.rows.group, found.rows.row, *self.summed]
        outer = [x for x in product.loops if not any(x.same_as(y) for y in own)]
        self.outer = sorted(outer, key=lambda x: _dimension(product.store, x.loop_var))
        moving = [x for x in product.store.indices if not ir.is_const(x, 0)]
        if not outer or not self.outer[-1].loop_var.same_as(moving[-1]):
            raise cannot_schedule(
                f"block {product.node.name_hint}",
                f"the output index {list(product.store.indices)}",
                "columns as its last dimension",
            )
        groups = ir.cast_like(found.rows.group.extent, self.row)
        self.count = ir.simplify((self.most_rows + groups * (rows - 1)) // rows)
        self.stores = self._find_stores()
        self.firsts = self._find_firsts()
        shape = (FIRST + len(self.firsts) + 1, self.count)
        self.table = ir.new_buffer(name, shape, "int32", "global")

    @property
    def most_rows(self) -> Any:
        """Rows of all groups: each has an element of the output in each column."""
        store, total = self.found.product.store, ir.cast_like(1, self.row)
        moving = [x.loop_var for x in self.outer]
        for index, extent in zip(store.indices, store.buffer.shape, strict=True):
            if not ir.depends_on(index, moving):
                total = total * ir.cast_like(extent, self.row)
        return ir.simplify(total)

    @property
    def old(self) -> list[Any]:
        """Variables of the output: a tile has one of each but for its rows and columns."""
        *others, last = [x.loop_var for x in self.outer]
        return [self.group, *others, self.row, last]

    @property
    def extents(self) -> list[Any]:
        """Of the output of tiles."""
        *others, last = [x.extent for x in self.outer]
        return [self.count, *others, self.rows, last]

    def _find_stores(self) -> list[Any]:
        before, found = self.found.product.store, []
        for reader in self.found.readers:
            known_loops = match_reader(reader, before, self.found.rows)
            before = ir.substitute(reader.store, known_loops)
            found.append(before)
        return found

    def _find_firsts(self) -> list[Any]:
        found: list[Any] = []
        parts = [self.found.load, self.found.product.store, *self.stores]
        moving = [self.row, *(x.loop_var for x in (*self.outer, *self.summed))]
        accesses = [(x.source, x.indices) for x in ir.find_all(parts, ir.TensorLoad)]
        accesses += [(x.buffer, x.indices) for x in parts if isinstance(x, ir.BufferStore)]
        for tensor, indices in accesses:
            for index in indices:
                if not ir.depends_on(index, [self.row]) or element_of_index(index) is not None:
                    continue  # what an index is read from is an access of its own
                first = self._first_of(index)
                if ir.depends_on(first, moving):
                    raise cannot_schedule(
                        f"block {self.found.product.node.name_hint}, tensor {tensor.name}",
                        f"the index {index} along the rows of groups",
                        "rows of a group one after another",
                        "copy them into such an order in a separate function",
                    )
                if not any(tvm_ffi.structural_equal(first, x) for x in found):
                    found.append(first)
        return found

    def _first_of(self, index: Any) -> Any:
        return ir.simplify(index - ir.cast_like(self.row, index))

    def variables(self) -> dict[Any, Any]:
        """Return new variables for a nest, by the old ones: of a tile and the row in it."""
        names = {self.group: "t", self.row: "i"}
        loops = [self.group, self.row, *(x.loop_var for x in (*self.outer, *self.summed))]
        return {x: ir.Var(names.get(x, str(x.name)), ir.dtype_of(self.row)) for x in loops}

    def of_tile(self, what: int, tile: Any) -> Any:
        """Return what the table says of a tile, as an index."""
        found = tirx.BufferLoad(self.table, [ir.cast_like(what, tile), tile])
        return ir.cast_like(found, tile)

    def placed(self, expr: Any, at: Mapping[Any, Any], ours: Sequence[Any] = ()) -> Any:
        """Return an expression of the product's loops in terms of a tile and the row in it.

        - `expr` (Expr or BufferStore): in terms of the loops.
        - `at` (mapping): of `variables`.
        - `ours` (sequence of Var): tensors of tiles, which are indexed by the tile and the row in
          it.
        """
        known_vars = {**at, self.group: self.of_tile(GROUP, at[self.group])}

        def place(index: Any) -> Any:
            if not ir.depends_on(index, [self.row]) or element_of_index(index) is not None:
                return ir.substitute(ir.mutate(index, visits), known_vars)
            first = self._first_of(index)
            number = next(
                i for i, x in enumerate(self.firsts) if tvm_ffi.structural_equal(x, first)
            )
            return ir.cast_like(self.of_tile(FIRST + number, at[self.group]) + at[self.row], index)

        def load(node: Any, _: Any) -> Any:
            if any(node.source.same_as(x) for x in ours):
                return ir.substitute(node, at)
            return tirx.BufferLoad(node.source, [place(x) for x in node.indices])

        visits: list[tuple[type, Any]] = [(ir.TensorLoad, load)]
        if isinstance(expr, ir.BufferStore):
            value = ir.substitute(ir.mutate(expr.value, visits), known_vars)
            return ir.BufferStore(expr.buffer, value, [place(x) for x in expr.indices])
        return ir.substitute(ir.mutate(expr, visits), known_vars)


def _dimension(store: Any, var: Any) -> int:
    return next((d for d, x in enumerate(store.indices) if ir.depends_on(x, [var])), -1)


def _in_tiles(func: tirx.PrimFunc, found: RaggedGroups, rows: int) -> tirx.PrimFunc:
    """Rewrite a function."""
    root = func.body.block
    names = ir.Names(str(x.name) for x in (*func.params, *root.alloc_buffers))
    cut = _TiledGroups(found, rows, names.take("tiles"))
    load, operand = _load_tiles(cut, names)
    product, total = _multiply(cut, operand, names)
    nests = [found.product, *found.readers]
    body: list[Any] = []
    for stmt in ir.statements(root.body):
        if stmt.same_as(found.product.stmt):
            body += [_fill_table(cut), load, product]
        elif not any(stmt.same_as(x.stmt) for x in nests):
            body.append(stmt)
        if stmt.same_as(nests[-1].stmt):
            body.append(_store(cut, total))
    gone = [x.store.buffer for x in nests[:-1]]
    kept = [x for x in root.alloc_buffers if not any(x.same_as(y) for y in gone)]
    buffers = [*kept, cut.table, operand.source, total.source]
    block = ir.with_block(root, body=ir.seq(*body), alloc_buffers=buffers)
    return func.with_body(ir.SBlockRealize(func.body.iter_values, func.body.predicate, block))


def _fill_table(cut: _TiledGroups) -> ir.Stmt:
    """Build the kernel that finds each tile's group: a thread for a tile counts those in front.

    It declares nothing that it writes: of symbolic rows TVM does not see that this is all.
    """
    tile, e = ir.Var("v_tile", "int32"), ir.Var("e", "int32")
    begin = ir.new_buffer("begin", (1,), "int32", "local")  # of a group's tiles
    before, most = tirx.BufferLoad(begin, [0]), ir.as_int32(cut.count)

    def of_group(expr: Any) -> Any:
        return ir.as_int32(ir.substitute(expr, {cut.group: e}))

    count = tirx.max(of_group(cut.found.rows.count), 0)
    tiles = (count + (cut.rows - 1)) // cut.rows
    row = (tile - before) * cut.rows

    def note(*values: Any) -> ir.Stmt:
        return ir.seq([ir.BufferStore(cut.table, x, [i, tile]) for i, x in enumerate(values)])

    here = note(e, count - row, *(of_group(x) + row for x in cut.firsts))
    search = ir.seq(
        ir.IfThenElse(tirx.And(before <= tile, tile < before + tiles), here, None),
        ir.BufferStore(begin, before + tiles, [0]),
    )
    last = FIRST + len(cut.firsts)
    in_use = ir.BufferStore(cut.table, tirx.min(before, most), [last, 0])
    body = ir.seq(
        ir.BufferStore(begin, 0, [0]),
        note(*[tirx.IntImm("int32", 0)] * last),
        ir.For(e, 0, cut.found.rows.group.extent, ir.ForKind.SERIAL, search),
        ir.IfThenElse(tile.equal(0), in_use, None),
    )
    domain = tvm.ir.Range.from_min_extent(tirx.IntImm("int32", 0), most)
    axis = IterVar(domain, tile, IterVar.DataPar)
    block = ir.SBlock([axis], [], [], str(cut.table.name), body, None, [begin])
    x, y = ir.Var("thread", "int32"), ir.Var("block", "int32")
    place = y * TABLE_THREADS + x
    stmt: Any = ir.SBlockRealize([place], place < most, block)
    blocks = ir.simplify((most + (TABLE_THREADS - 1)) // TABLE_THREADS)
    for var, extent, tag in ((x, TABLE_THREADS, "threadIdx.x"), (y, blocks, "blockIdx.x")):
        bound = IterVar(None, ir.Var("", "int32"), IterVar.ThreadIndex, tag)
        stmt = ir.For(var, 0, extent, ir.ForKind.THREAD_BINDING, stmt, bound)
    return stmt


def _load_tiles(cut: _TiledGroups, names: ir.Names) -> tuple[ir.Stmt, Any]:
    """Return the block of tiles of the operand, and its element in terms of the loops."""
    load, at = cut.found.load, cut.variables()
    indices = list(load.indices)
    loops = [x for x in (*cut.outer, *cut.summed) if ir.depends_on(indices, [x.loop_var])]
    old = [cut.group, cut.row, *(x.loop_var for x in loops)]
    extents = [cut.count, cut.rows, *(x.extent for x in loops)]
    source = cut.placed(load, at)
    inside = [
        new < ir.cast_like(extent, new)
        for x in (source, *ir.find_all(list(source.indices), ir.TensorLoad))
        for new, extent in zip(x.indices, x.source.shape, strict=True)
        if ir.depends_on(new, [at[cut.row]]) and element_of_index(new) is None
    ]
    dtype, name = ir.dtype_of(load.source), names.take(f"{load.source.name}_tiles")
    tiles = ir.new_buffer(name, tuple(extents), dtype, "global")
    zero = tirx.const(0, dtype)
    value = ir.call_op("prim.if_then_else", dtype, ir.conjunction(inside), source, zero)
    variables = [at[x] for x in old]
    store = ir.BufferStore(tiles, value, variables)
    return _nest(name, variables, extents, store), tirx.BufferLoad(tiles, old)


def _multiply(cut: _TiledGroups, operand: Any, names: ir.Names) -> tuple[ir.Stmt, Any]:
    """Return the product of tiles, and its element in terms of the loops."""
    product, at, old = cut.found.product, cut.variables(), cut.old
    name = names.take(f"{product.store.buffer.name}_tiles")
    dtype = ir.dtype_of(product.store.buffer)
    total = tirx.BufferLoad(ir.new_buffer(name, tuple(cut.extents), dtype, "global"), old)
    ours = [operand.source, total.source]
    value = replace_load(product.store.value, cut.found.load, operand)
    value = _read_instead(value, product.store.buffer, total)
    indices = [at[x] for x in old]
    start = ir.BufferStore(
        total.source, cut.placed(product.at(product.node.init.value), at), indices
    )
    nest = _nest(
        str(product.node.name_hint),
        [*indices, *(at[x.loop_var] for x in cut.summed)],
        [*cut.extents, *(x.extent for x in cut.summed)],
        ir.BufferStore(total.source, cut.placed(value, at, ours), indices),
        reduced=len(cut.summed),
        init=start,
        annotations=product.node.annotations,
    )
    return nest, total


def _store(cut: _TiledGroups, total: Any) -> ir.Stmt:
    """Return the block that stores the rows of a tile that are its group's.

    What it reads of the table is not declared: TVM would not move it to the tile.
    """
    at, last = cut.variables(), cut.found.product.store
    value = total
    for store in cut.stores:
        value, last = _read_instead(store.value, last.buffer, value), store
    store = cut.placed(ir.BufferStore(last.buffer, value, last.indices), at, [total.source])
    reads = ir.read_regions([store.value], without=cut.table)
    is_inside = at[cut.row] < cut.of_tile(LEFT, at[cut.group])
    return _nest(
        f"{last.buffer.name}_store",
        [at[x] for x in cut.old],
        cut.extents,
        store,
        reads=reads,
        body=ir.IfThenElse(is_inside, store, None),
        annotations={ROW_TABLE: str(cut.table.name)},
    )


def _nest(
    name: str,
    variables: list[Any],
    extents: list[Any],
    store: Any,
    reduced: int = 0,
    **changes: Any,
) -> ir.Stmt:
    """Build plain loops around a block of one store, with loops of its variables' names."""
    loops = [ir.Var(str(x.name), ir.dtype_of(x)) for x in variables]
    extents = [ir.cast_like(n, x) for n, x in zip(extents, variables, strict=True)]
    nest = ir.block_nest(name, variables, extents, store, loops=loops, reduced=reduced)
    (block,) = ir.find_all(nest, ir.SBlock)
    return ir.replace_nodes(nest, ir.SBlock, {block: ir.with_block(block, **changes)})


def _read_instead(value: Any, tensor: Any, new: Any) -> Any:
    """Read something else where an expression reads a tensor."""

    def visit(load: Any, mutator: Any) -> Any:
        return new if load.source.same_as(tensor) else mutator.default_mutate(load)

    return ir.mutate(value, [(ir.TensorLoad, visit)])
