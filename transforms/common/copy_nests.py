"""Recognise copies: loops bound to threads, vectors, T.where, and the box that they fill.

    for i in range(4):
        for v in vectorized(8):
            with sblock("copy", async_copy="auto"), where(i * 32 + tx < 100):
                tile[f // 64, f % 64] = A[m + f // 64, f % 64]          f of i, tx and v
  ->
    for a, b in grid(16, 64): tile[a, b] = A[m + a, b]

A copy with one loop per dimension of its tile stays as it is, and so does a warp group's copy of
its part of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir as tvm_ir, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.access import step_of
from tvm_hopper.analysis.bounds import as_less_than, without_quotient
from tvm_hopper.analysis.box import Box, find_box
from tvm_hopper.analysis.updates import combine, find_update, moved_value
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.requests.keys import ASYNC_COPY, BY_THREADS, STAGE, WGMMA


@dataclass(frozen=True)
class CopyNest:
    """A block that requests a mechanism, and the outermost of the loops that are its alone."""

    nest: ir.Stmt
    realize: ir.SBlockRealize

    @property
    def mechanism(self) -> str:
        """The requested mechanism."""
        return str(self.realize.block.annotations[ASYNC_COPY])


def find_copy_nests(kernel: ir.For) -> tuple[CopyNest, ...]:
    """Return the copies of a kernel, in order."""
    blocks = ir.find_all(kernel, ir.SBlockRealize, lambda x: ASYNC_COPY in x.block.annotations)
    return tuple(CopyNest(_outermost(kernel, block), block) for block in blocks)


def tile_of(copy: CopyNest) -> ir.Var | None:
    """Return the end of a copy in shared memory."""
    store = copy.realize.block.body
    if not isinstance(store, ir.BufferStore):
        return None
    ends = [store.buffer, *(x.source for x in ir.find_all(store.value, ir.TensorLoad))]
    return next((x for x in ends if ir.is_shared(x)), None)


def fills_tile(copy: CopyNest) -> bool:
    """Tell a copy into shared memory from one out of it."""
    store = copy.realize.block.body
    return isinstance(store, ir.BufferStore) and ir.is_shared(store.buffer)


def _outermost(kernel: ir.For, realize: ir.SBlockRealize) -> ir.Stmt:
    """Return the outermost of the loops around a block that hold nothing else and move its tile."""
    store = realize.block.body
    used = list(store.indices) if isinstance(store, ir.BufferStore) else []
    best: ir.Stmt = realize
    for loop in ir.find_all(kernel, ir.For, lambda x: x.kind != ir.ForKind.THREAD_BINDING):
        loops, body = ir.loop_nest(loop)
        if not body.same_as(realize) or any(STAGE in x.annotations for x in loops):
            continue
        moves = all(ir.is_const(x.extent, 1) or ir.uses(used, x.loop_var) for x in loops)
        if moves:
            return loop
    return best


def as_box_nest(kernel: ir.For, copy: CopyNest) -> ir.Stmt:
    """Return a copy as loops over its box; reasons to refuse are raised here."""
    block = copy.realize.block
    where = f"block {block.name_hint}, {ASYNC_COPY}"
    store = block.body
    if not isinstance(store, ir.BufferStore):
        return copy.nest  # refused where transfers are read
    _check_type(where, store.buffer)
    loops = ir.loop_nest(copy.nest)[0] if isinstance(copy.nest, ir.For) else []
    if _runs_over_tile(store, loops) and not _uses_threads(kernel, store):
        return copy.nest
    if _is_part(kernel, store, loops):
        return copy.nest
    threads = [x for x in ir.thread_axes(kernel).values() if _is_thread(x)]
    moving = [x for x in threads if ir.uses(list(store.indices), x.loop_var)]
    names = [f"i{n}" for n in range(len(store.indices))]
    condition = copy.realize.predicate
    box = find_box(list(store.indices), [*moving, *loops], names, condition)
    if box is None:
        raise cannot_lower(
            where,
            f"stores to {store.buffer.name}{list(store.indices)} by loops "
            f"{[x.loop_var.name for x in (*moving, *loops)]}",
            "loops that store each element of a box once",
            "copy the tile in loops over its dimensions, fused and split at will",
        )
    rebuilt = _rebuild(copy, box)
    gone = [x.loop_var for x in (*threads, *loops)]
    if any(ir.uses(rebuilt, var) for var in gone):
        raise cannot_lower(
            where,
            f"elements {store.value} that depend on the thread or loop that stores them",
            "elements that depend on their place in the tile alone",
            "copy the tile by one index for each dimension",
        )
    return rebuilt


def _check_type(where: str, buffer: ir.Var) -> None:
    """Refuse elements that are no whole bytes: copies are sized, and begin, by bytes."""
    dtype = ir.dtype_of(buffer)
    if dtype not in DTYPES:
        raise cannot_lower(
            where,
            f"elements of {dtype} in {buffer.name}",
            f"elements of whole bytes, one of {', '.join(DTYPES)}",
            f'copy them as such, or request "{BY_THREADS}": threads copy them',
        )


def _is_thread(axis: ir.For) -> bool:
    return str(axis.thread_binding.thread_tag).startswith("threadIdx")


def counts_threads(kernel: ir.For) -> bool:
    """Tell whether thread axes count threads; where warp groups multiply they count these."""
    return not ir.find_blocks(kernel, WGMMA)


def _uses_threads(kernel: ir.For, store: ir.BufferStore) -> bool:
    axes = [x.loop_var for x in ir.thread_axes(kernel).values() if _is_thread(x)]
    return any(ir.uses([*store.indices, store.value], var) for var in axes)


def _is_part(kernel: ir.For, store: ir.BufferStore, loops: list[ir.For]) -> bool:
    """Tell a warp group's copy of its own part of a tile to global memory.

    Where warp groups multiply, thread axes count them, and not threads.
    """
    if counts_threads(kernel) or store.buffer.scope() not in ("", "global"):
        return False
    value = moved_value(store)
    if not isinstance(value, ir.TensorLoad):
        return False
    axes = [x.loop_var for x in ir.thread_axes(kernel).values() if _is_thread(x)]
    own = [x.loop_var for x in loops if not ir.is_const(x.extent, 1)]
    places = [[var for var in own if ir.uses(index, var)] for index in value.indices]
    return all(loop.kind == ir.ForKind.SERIAL for loop in loops) and all(
        len(found) <= 1 and (len(found) == 1 or not ir.depends_on(index, axes))
        for found, index in zip(places, value.indices, strict=True)
    )


def _runs_over_tile(store: ir.BufferStore, loops: list[ir.For]) -> bool:
    """Tell a nest of plain loops each of whose variables is an index of the tile by itself."""
    if any(loop.kind != ir.ForKind.SERIAL for loop in loops):
        return False
    return all(
        ir.is_const(loop.extent, 1) or any(loop.loop_var.same_as(x) for x in store.indices)
        for loop in loops
    ) and bool(loops)


def _rebuild(copy: CopyNest, box: Box) -> ir.Stmt:
    block, store = copy.realize.block, copy.realize.block.body
    place = [
        ir.simplify(ir.cast_like(var, base) + base) if size != 1 else base
        for var, base, size in zip(box.loop_vars, box.base, box.extents, strict=True)
    ]
    element = [tvm_ir.Range.from_min_extent(x, 1) for x in place]
    update = find_update(store)
    value = _at_element(box, moved_value(store))
    if update is not None:
        value = combine(update.operation, tirx.BufferLoad(store.buffer, place), value)
    loads = ir.find_all(value, ir.TensorLoad)
    reads = [
        tirx.BufferRegion(x.source, [tvm_ir.Range.from_min_extent(i, 1) for i in x.indices])
        for x in loads
    ]
    new = ir.with_block(
        block,
        body=ir.BufferStore(store.buffer, value, place),
        reads=reads,
        writes=[tirx.BufferRegion(store.buffer, element)],
    )
    condition, extents = _cut(_at_element(box, copy.realize.predicate), box)
    stmt: ir.Stmt = ir.SBlockRealize([], condition, new)
    for var, extent in reversed(list(zip(box.loop_vars, extents, strict=True))):
        if extent != 1:
            stmt = ir.For(var, 0, extent, ir.ForKind.SERIAL, stmt)
    return stmt if isinstance(stmt, ir.For) else ir.make_loop("i", 1, lambda _: stmt)


def _cut(condition: Any, box: Box) -> tuple[Any, list[int]]:
    """Take bounds that are numbers off a condition, and the loops to them: `where(tx < 30)`."""
    extents = list(box.extents)
    left: Any = tirx.const(True, "bool")
    terms = [condition]
    while terms:
        term = terms.pop()
        if isinstance(term, tirx.And):
            terms += [term.b, term.a]
            continue
        place, bound = _own_bound(term, box) or (0, 0)
        if bound > 1:
            extents[place] = min(extents[place], bound)
        else:
            left = term if ir.is_const(left, 1) else tirx.And(left, term)
    return left, extents


def _own_bound(term: Any, box: Box) -> tuple[int, int] | None:
    """Read `8 i + j < 24` with j below 8 as a bound of i: which loop of a box, and the bound."""
    low, high = as_less_than(term) or (None, None)
    if not isinstance(high, tirx.IntImm):
        return None
    analyzer = box.analyzer()
    for place, var in enumerate(box.loop_vars):
        step = step_of(low, var)
        if step is None or step < 1:
            continue
        rest = ir.simplify(low - var * step)
        if analyzer.can_prove(rest >= 0) and analyzer.can_prove(rest < step):
            return place, -(-int(high) // step)
    return None


def _at_element(box: Box, expr: Any) -> Any:
    """Rewrite what is stored, or the condition under which it is, as the element's."""
    if isinstance(expr, ir.Call) and expr.op.name.endswith("if_then_else"):
        condition, value, fill = expr.args
        return tirx.if_then_else(_at_element(box, condition), _at_element(box, value), fill)
    if isinstance(expr, ir.TensorLoad):
        return tirx.BufferLoad(expr.source, [box.at_element(x) for x in expr.indices])
    if isinstance(expr, tirx.And):
        return ir.simplify(tirx.And(_at_element(box, expr.a), _at_element(box, expr.b)))
    sides = as_less_than(expr)
    if sides is not None:
        low, high = without_quotient(*map(box.at_element, sides))
        term = ir.simplify(low < ir.cast_like(high, low))
        return tirx.const(True, "bool") if box.analyzer().can_prove(term) else term
    return box.at_element(expr)
