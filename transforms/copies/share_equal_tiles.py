"""Load what two products read once: equal copies of a loop become one.

    for k in ...:                                  software_pipeline_stage = [0, 0, 0, 0, 2, 2]
        with sblock(async_copy): a[i, j] = A[...]
        with sblock(async_copy): g[i, j] = G[...]
        with sblock(async_copy): again[i, j] = A[...]
        with sblock(async_copy): w[i, j] = W[...]
        c += a * g
        u += again * w
  ->
    for k in ...:                                  software_pipeline_stage = [0, 0, 0, 2, 2]
        with sblock(async_copy): a[i, j] = A[...]
        with sblock(async_copy): g[i, j] = G[...]
        with sblock(async_copy): w[i, j] = W[...]
        c += a * g
        u += a * w

A step of ReuseOperandTiles. TVM pads each product by itself, so that products of one operand read
two pads of it.

Before: copies are requests, arrays whole tiles.  After: the same, of fewer arrays.  Left alone:
copies with other requests, tiles that anything else writes, and sources that the kernel writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi

from tvm_hopper import ir
from tvm_hopper.requests.keys import ASYNC_COPY
from tvm_hopper.transforms.common.stage_annotations import parts_of, stages_without
from tvm_hopper.transforms.kernel_pass import kernel_step


@dataclass(frozen=True)
class EqualCopies:
    """Two copies of the same elements, in one loop.

    - `later`: the nest of the second copy.
    - `place`: its number among the statements of the loop.
    """

    loop: ir.For
    later: ir.For
    place: int
    kept: ir.Var
    dropped: ir.Var


def plan_equal_copies(kernel: ir.For) -> list[EqualCopies]:
    """Return the copies of a kernel that bring what another one brings."""
    copies = [x for x in ir.find_blocks(kernel, ASYNC_COPY) if _fills(x)]
    if len(ir.once([x.reads[0].source for x in copies])) == len(copies):
        return []
    plans = []
    for loop in ir.find_all(kernel, ir.For):
        first: list[tuple[ir.For, ir.Var]] = []  # copies that bring something new
        for place, part in enumerate(parts_of(loop)):
            inside = ir.find_all(part, ir.SBlock) if isinstance(part, ir.For) else []
            if len(inside) != 1 or not any(inside[0].same_as(x) for x in copies):
                continue
            tile = inside[0].writes[0].source
            same = next((y for x, y in first if _is_equal(kernel, (x, y), (part, tile))), None)
            if same is None:
                first.append((part, tile))
            else:
                plans.append(EqualCopies(loop, part, place, same, tile))
    return plans


def _fills(block: ir.SBlock) -> bool:
    """Tell whether a block copies from one tensor to one shared tile."""
    one_each = len(block.reads) == len(block.writes) == 1
    return (
        one_each
        and isinstance(block.body, ir.BufferStore)
        and ir.is_shared(block.body.buffer)
        and len(ir.find_all(block.body.value, ir.TensorLoad)) == 1
    )


def _is_equal(kernel: ir.For, first: tuple[ir.For, ir.Var], later: tuple[ir.For, ir.Var]) -> bool:
    """Tell whether two copies bring the same, and nothing else writes where from or where to."""
    (one, kept), (two, dropped) = first, later
    if kept.same_as(dropped) or not tvm_ffi.structural_equal(kept.shape, dropped.shape):
        return False
    (loops, realize), (others, again) = ir.loop_nest(one), ir.loop_nest(two)
    extents = [[x.extent for x in nest] for nest in (loops, others)]
    names = {y.loop_var: x.loop_var for x, y in zip(loops, others, strict=False)}
    again = ir.substitute(again, {**names, dropped: kept})
    # `structural_equal` of whole loops would also match different variables of loops around them.
    same = map(
        tvm_ffi.structural_equal,
        (*extents[:1], realize.predicate, realize.block.body, realize.block.annotations),
        (*extents[1:], again.predicate, again.block.body, again.block.annotations),
    )
    if not all(same):
        return False
    (load,) = ir.find_all(one, ir.TensorLoad)
    stores = [x.buffer for x in ir.find_all(kernel, ir.BufferStore)]
    written = [sum(x.same_as(y) for x in stores) for y in (kept, dropped, load.source)]
    return written == [1, 1, 0]


def rewrite_equal_copies(kernel: ir.For, plans: list[EqualCopies]) -> ir.Stmt:
    """Drop the later copies and their tiles; readers read the first one."""
    laters = {plan.later for plan in plans}
    places: dict[Any, list[int]] = {}
    for plan in plans:
        places.setdefault(plan.loop, []).append(plan.place)

    def visit(loop: ir.For, mutator: Any) -> ir.Stmt:
        if loop in laters:
            return ir.seq()
        new = mutator.default_mutate(loop)
        if loop not in places:
            return new
        return ir.with_body(new, new.body, annotations=stages_without(loop, places[loop]))

    def drop(block: ir.SBlock) -> ir.SBlock:
        left = [x for x in block.alloc_buffers if not any(x.same_as(y.dropped) for y in plans)]
        return ir.with_block(block, alloc_buffers=left)

    body = ir.drop_empty(ir.mutate(kernel, [(ir.For, visit)]))
    return ir.substitute(ir.replace(body, ir.SBlock, drop), {x.dropped: x.kept for x in plans})


share_equal_tiles = kernel_step(plan_equal_copies, rewrite_equal_copies)
