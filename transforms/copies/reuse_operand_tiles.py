"""Stage a store's result in the shared tile of the operand it was computed from.

    alloc d, r
    with sblock(async_copy): r[i, j] = R[...]
    for i, j: d[i, j] = float16(f(acc[i, j], r[i, j]))
    with sblock(async_copy): D[...] = d[i, j]
  ->
    alloc r
    with sblock(async_copy): r[i, j] = R[...]
    for i, j: acc[i, j] = f(acc[i, j], r[i, j])
    for i, j: r[i, j] = float16(acc[i, j])
    with sblock(async_copy): D[...] = r[i, j]

so that stores of all parts of a tile are under way at once: each part is stored from the slot of
its operand part, and no part waits for the previous store. Slots go back to the loads when the
stores have read them. All elements are read before any is written, since threads of a warp store
others' elements.

Tiles of equal copies become one first: share_equal_tiles.py.

Before: copies are requests, arrays whole tiles. After: the same, of fewer arrays. Left alone are
operands that are read elsewhere than at the written element, or once more after it. So are sums
that are read again, operands of another type, shape or scope or loaded in part, as at an edge, and
outputs that are not copied out asynchronously.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.keys import ASYNC_COPY, TAKES_PLACE
from tvm_hopper.transforms.common.multiply_add import product_blocks
from tvm_hopper.transforms.kernel_pass import function_pass

from .share_equal_tiles import share_equal_tiles


@dataclass(frozen=True)
class TileReuse:
    """A staged output that takes the place of an operand.

    - `block`: it allocates both.
    - `nest`: the loops that compute the output, with one statement.
    - `store`: that statement.
    - `sum`: the element of the accumulator that it reads.
    """

    block: ir.SBlock
    staged: Any
    operand: Any
    nest: ir.For
    store: ir.BufferStore
    sum: ir.TensorLoad


def plan_tile_reuse(func: tirx.PrimFunc) -> list[TileReuse]:
    """Return the staged outputs that can take the place of an operand, one of a block."""
    found = []
    for block in ir.find_all(func.body, ir.SBlock, lambda x: len(x.alloc_buffers) > 1):
        plans = (_plan(block, staged) for staged in block.alloc_buffers)
        found += [x for x in plans if x is not None and _may_overwrite(func, x)][:1]
    return found


def _may_overwrite(func: tirx.PrimFunc, plan: TileReuse) -> bool:
    """Tell whether a plan's sums are a product's and unused after it."""
    total = plan.sum.source
    products = [x for x in product_blocks(func.body) if ir.uses(x, total)]
    homes = [
        x
        for x in ir.find_all(func.body, ir.SBlock)
        if any(y.same_as(total) for y in x.alloc_buffers)
    ]
    if len(products) != 1 or len(homes) != 1:
        return False
    loads = ir.find_all(func.body, ir.TensorLoad, lambda x: x.source.same_as(total))
    here = [plan.nest, products[0]]
    around = ir.find_all(
        homes[0].body,
        tirx.For,
        lambda x: (
            x.kind != ir.ForKind.THREAD_BINDING
            and not ir.is_const(x.extent, 1)
            and ir.uses_node(x.body, plan.block)
        ),
    )
    indices = list(plan.sum.indices)
    return all(any(ir.uses_node(part, x) for part in here) for x in loads) and all(
        ir.depends_on(indices, [loop.loop_var]) for loop in around
    )


def _plan(block: ir.SBlock, staged: Any) -> TileReuse | None:
    copies = ir.find_all(block.body, ir.SBlock, lambda x: ASYNC_COPY in x.annotations)
    stores, loads = _accesses(block, staged)
    nests = [x for x in ir.statements(block.body) if stores and ir.uses_node(x, stores[0])]
    if len(stores) != 1 or len(loads) != 1 or not _is_in(loads[0], copies):
        return None
    (store,) = stores
    total = _sum_of(store.value)
    # A tile of fewer rows than its threads compute is stored under a condition, and is as small:
    # sums that go back to registers would be stored whole.
    is_plain = isinstance(nests[0], tirx.For) and not _is_in(store, copies)
    is_plain = is_plain and _is_whole(block, store)
    if total is None or not is_plain or ir.dtype_of(_unrounded(store)) != "float32":
        return None
    operands = (x for x in block.alloc_buffers if _is_operand(x, block, staged, store, copies))
    operand = next(operands, None)
    if operand is None:
        return None
    return TileReuse(block, staged, operand, nests[0], store, total)


def _is_operand(
    buffer: ir.Var, block: ir.SBlock, staged: Any, store: ir.BufferStore, copies: list[ir.SBlock]
) -> bool:
    """Tell whether a copy fills a tile that only a store reads, where it stores to another one."""
    if buffer.same_as(staged) or not _alike(buffer, staged):
        return False
    written, read = _accesses(block, buffer)
    if len(written) != 1 or not read:
        return False
    in_place = all(_same(x.indices, store.indices) and ir.uses_node(store, x) for x in read)
    return in_place and _is_in(written[0], copies) and _is_whole(block, written[0])


def _sum_of(value: Any) -> ir.TensorLoad | None:
    """Return the element of a float32 sum in registers that a value is made of, and no other."""
    sums = ir.find_all(value, ir.TensorLoad, lambda x: str(x.source.scope()) == "local")
    for x in sums:
        is_same = x.source.same_as(sums[0].source) and _same(x.indices, sums[0].indices)
        if not is_same or ir.dtype_of(x) != "float32":
            return None
    return sums[0] if sums else None


def _accesses(block: ir.SBlock, buffer: Any) -> tuple[list[Any], list[Any]]:
    """Return the stores and the loads of a buffer."""
    stores = ir.find_all(block.body, ir.BufferStore, lambda x: x.buffer.same_as(buffer))
    loads = ir.find_all(block.body, ir.TensorLoad, lambda x: x.source.same_as(buffer))
    return stores, loads


def _is_in(node: Any, blocks: list[ir.SBlock]) -> bool:
    return any(ir.uses_node(x.body, node) for x in blocks)


def _is_whole(block: ir.SBlock, store: ir.BufferStore) -> bool:
    """Tell whether a copy has no condition: elsewhere a tile would keep what was there before."""
    around = ir.find_all(block.body, ir.SBlockRealize, lambda x: ir.uses_node(x, store))
    branches = ir.find_all(block.body, ir.IfThenElse, lambda x: ir.uses_node(x, store))
    return not branches and all(ir.is_const(x.predicate, 1) for x in around)


def _same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(tvm_ffi.structural_equal, one, other))


def _alike(one: Any, other: Any) -> bool:
    scopes = str(one.scope()), str(other.scope())
    types = ir.dtype_of(one), ir.dtype_of(other)
    same = scopes[0] == scopes[1] and types[0] == types[1] and _same(one.shape, other.shape)
    return same and ir.is_shared(one)


def _unrounded(store: ir.BufferStore) -> Any:
    """Return what a statement stores, before it is rounded."""
    return store.value.value if isinstance(store.value, tirx.Cast) else store.value


def rewrite_tile_reuse(plan: TileReuse) -> ir.SBlock:
    """Build the block again that allocates both."""
    value, last = _unrounded(plan.store), plan.sum
    index = list(plan.sum.indices)
    if isinstance(plan.store.value, tirx.Cast):
        if isinstance(value, tirx.Max) and ir.is_zero(value.b):  # of pairs it costs nothing there
            value, last = value.a, tirx.Max(plan.sum, value.b)
        last = tirx.Cast(ir.dtype_of(plan.store.value), last)
    first = _with_store(plan, ir.BufferStore(plan.sum.source, value, index), True)
    second = _with_store(plan, ir.BufferStore(plan.operand, last, list(plan.store.indices)), False)
    both = ir.opaque_block("in_place", ir.seq(first, ir.fresh_variables(second)))
    body = ir.replace_nodes(plan.block.body, tirx.For, {plan.nest: both})
    kept = [x for x in plan.block.alloc_buffers if not x.same_as(plan.staged)]
    block = ir.with_block(plan.block, body=body, alloc_buffers=kept)
    return ir.substitute(block, {plan.staged: plan.operand})


def _with_store(plan: TileReuse, store: ir.BufferStore, is_first: bool) -> ir.Stmt:
    """Return the loops around another statement, in a block that tells what that touches."""
    (block,) = [x for x in ir.find_all(plan.nest, ir.SBlock) if x.body.same_as(plan.store)]
    one = [ir.full_region(store.buffer)]
    read = {x.source: x.source for x in ir.find_all(store.value, ir.TensorLoad)}
    notes = {**block.annotations, **({} if is_first else {TAKES_PLACE: 1})}
    regions = {"reads": [ir.full_region(x) for x in read], "writes": one}
    new = ir.with_block(block, body=store, annotations=notes, **regions)
    return ir.replace_nodes(plan.nest, ir.SBlock, {block: new})


def _stage_in_place(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Merge arrays of one function."""
    plans = plan_tile_reuse(func)
    if not plans:
        return func
    changed = {plan.block: rewrite_tile_reuse(plan) for plan in plans}
    return func.with_body(ir.replace_nodes(func.body, ir.SBlock, changed))


ReuseOperandTiles = function_pass("ReuseOperandTiles", share_equal_tiles, _stage_in_place)
