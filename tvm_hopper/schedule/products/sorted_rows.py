"""Sort rows by the matrix that a table names for each, into groups of rows.

    for r, j, k: C[r, j] += A[r, k] * B[E[r], j, k]
  ->
    order, places = rows by their matrix, where those of each begin      a kernel of its own
    for e in range(8):
        for i in range(places[e + 1] - places[e]):
            C[order[places[e] + i], j] += A[order[places[e] + i], k] * B[e, j, k]

Each matrix is then read once for all of its rows, where each row would read its own. `tile_groups`
cuts the groups into tiles. Not here: as few rows that most matrices have none or one.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.tirx import IterVar

from tvm_hopper import ir
from tvm_hopper.errors import HopperError

from .axes import element_of_index, sort_axes
from .fuse import with_prologue
from .recognize import product_loads
from .replace_load import replace_load

LEAST_ROWS = 4  # of a matrix in the mean
MOST_ROWS = 1 << 16  # each is compared with all others
THREADS = 128


def sort_rows(func: tirx.PrimFunc, block: str) -> tirx.PrimFunc | None:
    """Return a function whose product has sorted rows; None where there is nothing to gain.

    - `func`: plain loops.
    - `block`: the multiply-add.
    """
    if not isinstance(func.body, ir.SBlockRealize) or not _has_tables(func):
        return None
    sch = with_prologue(func, block)
    if sch is None:
        return None  # `hs.matmul` says why
    try:
        node = sch.get(sch.get_sblock(block))
        loads = product_loads(f"block {block}", node)
    except HopperError:
        return None  # `hs.matmul` says why
    new = sch.mod["main"]
    for load in loads:
        for place, index in enumerate(load.indices):
            row = _row_of(node, loads, index)
            matrices = ir.static_int(load.source.shape[place])
            rows = None if row is None else ir.static_int(row.dom.extent)
            if row is None or not matrices or not rows:
                continue
            if not LEAST_ROWS * matrices <= rows <= MOST_ROWS:
                continue
            if _is_loop_of_all(new, node, row):
                return _sorted(new, node, row, load, place)
    return None


def _has_tables(func: tirx.PrimFunc) -> bool:
    loads = ir.find_all(func.body, ir.TensorLoad)
    return any(element_of_index(x) is not None for load in loads for x in load.indices)


def _row_of(node: Any, loads: Any, index: Any) -> IterVar | None:
    """Return the variable by which a table names a matrix, if rows of the product are its own."""
    index = element_of_index(index)
    if index is None or len(index.indices) != 1:
        return None
    axes = sort_axes(node, loads)
    row = next((x for x in node.iter_vars if x.var.same_as(index.indices[0])), None)
    alone = [node.iter_vars[i] for i in axes.batch]
    # one side has rows of its own next to the table's: then these are tiles as they are
    is_alone = row is not None and alone == [row] and not (axes.rows and axes.columns)
    return row if is_alone else None


def _is_loop_of_all(func: tirx.PrimFunc, node: Any, row: IterVar) -> bool:
    """Tell whether a loop of its own runs through all rows."""
    (nest,) = (x for x in ir.statements(func.body.block.body) if ir.uses_node(x, node))
    loops, realize = ir.loop_nest(nest)
    mine = dict(zip((x.var for x in node.iter_vars), realize.iter_values, strict=True))
    found = [x for x in loops if x.loop_var.same_as(mine[row.var])]
    extent = ir.static_int(row.dom.extent)
    return any(ir.is_const(x.min, 0) and ir.static_int(x.extent) == extent for x in found)


def _sorted(func: tirx.PrimFunc, node: Any, row: IterVar, load: Any, place: int) -> tirx.PrimFunc:
    root = func.body.block
    names = ir.Names(str(x.name) for x in (*func.params, *root.alloc_buffers))
    (nest,) = (x for x in ir.statements(root.body) if ir.uses_node(x, node))
    loops, realize = ir.loop_nest(nest)
    table, matrices = element_of_index(load.indices[place]).source, int(load.source.shape[place])
    rows = int(row.dom.extent)
    order = ir.new_buffer(names.take("order"), (rows,), "int32", "global")
    places = ir.new_buffer(names.take("places"), (matrices + 1,), "int32", "global")
    group, e, i = (ir.Var(x, ir.dtype_of(row.var)) for x in ("group", "e", "i"))
    begin, end = (ir.cast_like(tirx.BufferLoad(places, [x]), i) for x in (e, e + 1))
    at = ir.cast_like(tirx.BufferLoad(order, [begin + i]), row.var)
    indices = [group if d == place else x for d, x in enumerate(load.indices)]
    value = replace_load(node.body.value, load, tirx.BufferLoad(load.source, indices))
    store = ir.BufferStore(node.body.buffer, value, node.body.indices)
    domain = tvm.ir.Range.from_min_extent(ir.cast_like(0, group), ir.cast_like(matrices, group))
    block = ir.with_block(
        node,
        iter_vars=[IterVar(domain, group, IterVar.DataPar), *node.iter_vars],
        reads=ir.read_regions([value], without=store.buffer),
        body=store,
    )
    bound = [
        at if x.var.same_as(row.var) else y
        for x, y in zip(node.iter_vars, realize.iter_values, strict=True)
    ]
    stmt: ir.Stmt = ir.SBlockRealize([e, *bound], realize.predicate, block)
    mine = dict(zip((x.var for x in node.iter_vars), realize.iter_values, strict=True))
    for loop in reversed(loops):
        if not loop.loop_var.same_as(mine[row.var]):
            stmt = ir.with_body(loop, stmt)
    zero = ir.cast_like(0, i)
    stmt = ir.For(i, zero, end - begin, ir.ForKind.SERIAL, stmt)
    stmt = ir.For(e, zero, ir.cast_like(matrices, e), ir.ForKind.SERIAL, stmt)
    kernel = _sort(table, order, places)
    body = [
        part
        for x in ir.statements(root.body)
        for part in ((kernel, stmt) if x.same_as(nest) else (x,))
    ]
    buffers = [*root.alloc_buffers, order, places]
    root = ir.with_block(root, body=ir.seq(*body), alloc_buffers=buffers)
    return func.with_body(ir.SBlockRealize(func.body.iter_values, func.body.predicate, root))


def _sort(table: Any, order: Any, places: Any) -> ir.Stmt:
    """Build the kernel that sorts: each thread counts the rows in front of its own.

    It declares nothing that it writes, as the kernel that fills a table of tiles.
    """
    rows, groups = int(order.shape[0]), int(places.shape[0])
    most = max(rows, groups)
    v, s = ir.Var("v", "int32"), ir.Var("s", "int32")
    counts = ir.new_buffer("counts", (2,), "int32", "local")  # in front of the row; of matrices

    def key(row: Any) -> Any:
        return ir.as_int32(tirx.BufferLoad(table, [row]))

    own = key(tirx.min(v, rows - 1))
    in_front = tirx.Or(key(s) < own, tirx.And(key(s).equal(own), s < v))
    count = [
        ir.BufferStore(counts, tirx.BufferLoad(counts, [i]) + tirx.Select(x, 1, 0), [i])
        for i, x in enumerate((in_front, key(s) < v))
    ]
    rank, begin = (tirx.BufferLoad(counts, [i]) for i in (0, 1))
    body = ir.seq(
        [ir.BufferStore(counts, 0, [i]) for i in (0, 1)],
        ir.For(s, 0, rows, ir.ForKind.SERIAL, ir.seq(*count)),
        ir.IfThenElse(v < rows, ir.BufferStore(order, v, [rank]), None),
        ir.IfThenElse(v < groups, ir.BufferStore(places, begin, [v]), None),
    )
    zero = tirx.IntImm("int32", 0)
    axis = IterVar(tvm.ir.Range.from_min_extent(zero, tirx.IntImm("int32", most)), v, 0)
    block = ir.SBlock([axis], [], [], str(order.name), body, None, [counts])
    x, y = ir.Var("thread", "int32"), ir.Var("block", "int32")
    place = y * THREADS + x
    stmt: Any = ir.SBlockRealize([place], place < most, block)
    for var, extent, tag in ((x, THREADS, "threadIdx.x"), (y, -(-most // THREADS), "blockIdx.x")):
        bound = IterVar(None, ir.Var("", "int32"), IterVar.ThreadIndex, tag)
        stmt = ir.For(var, 0, extent, ir.ForKind.THREAD_BINDING, stmt, bound)
    return stmt
