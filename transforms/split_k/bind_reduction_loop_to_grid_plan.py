"""Decide whether thread blocks may share the iterations of a serial loop.

    for bx in thread_binding(8, "blockIdx.x"):
        for part in serial(16, annotations={"tvm_hopper.across_blocks": "blockIdx.z"}):
            tile = alloc(shared)
            tile[...] = ...
            with sblock(async_op="tma_reduce"): C += tile

They may where an iteration leaves nothing to another one but by operations that combine: each
element's update is atomic (PTX ISA 9.1, 9.7.9.25.5.2), so that any order will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.effects import find_effects
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.async_ops import ASYNC_OPS
from tvm_hopper.facts.reductions import depends_on_order
from tvm_hopper.requests.keys import ACROSS_BLOCKS, ASYNC_OP, DETERMINISTIC, REDUCE


@dataclass(frozen=True)
class Reduction:
    """A block of operations that combine elements of a tensor with what they were."""

    block: ir.SBlock
    tensor: ir.Var
    operation: str

    @property
    def is_ordered(self) -> bool:
        """Tell whether the result depends on the order of the operations."""
        return depends_on_order(self.operation, ir.dtype_of(self.tensor))


@dataclass(frozen=True)
class SharedLoop:
    """A loop whose iterations thread blocks share, and the axis that counts them."""

    loop: ir.For
    axis: str


def find_reductions(root: Any) -> tuple[Reduction, ...]:
    """Return the blocks of operations that combine, in order."""
    blocks = ir.find_blocks(root, ASYNC_OP)
    found = [x for x in blocks if ASYNC_OPS[str(x.annotations[ASYNC_OP])].combines]
    return tuple(Reduction(x, x.writes[0].source, str(x.annotations[REDUCE])) for x in found)


def check_order(reductions: tuple[Reduction, ...]) -> None:
    """Refuse sums whose bits depend on the order, for who requested the same bits in each run."""
    for one in reductions:
        if one.is_ordered:
            dtype = ir.dtype_of(one.tensor)
            raise cannot_lower(
                f"store {one.block.name_hint}, {DETERMINISTIC}",
                f"sums of {dtype} in {one.tensor.name} whose terms come in any order",
                "results that are the same bits in each run",
                "sum integers, or store each part to a separate place and add them in a kernel "
                "after it, in a fixed order",
            )


def plan_reduction_loop(kernel: ir.For) -> tuple[SharedLoop, ...]:
    """Find the loops of a kernel that blocks are to share; reasons to refuse are raised here."""
    loops = ir.find_all(kernel, ir.For, lambda x: ACROSS_BLOCKS in x.annotations)
    plan: list[SharedLoop] = []
    for loop in loops:
        axis = str(loop.annotations[ACROSS_BLOCKS])
        where = f"loop {loop.loop_var.name}, {ACROSS_BLOCKS} = {axis!r}"
        if axis in ir.thread_axes(kernel) or any(x.axis == axis for x in plan):
            raise cannot_lower(where, f"another loop on {axis}", "a separate axis")
        if loop.kind != ir.ForKind.SERIAL or not ir.is_const(loop.min, 0):
            kind = ir.ForKind(loop.kind).name.lower()
            found = f"a loop of kind {kind} from {loop.min}"
            raise cannot_lower(where, found, "a serial loop from 0")
        _check_alone(kernel, loop, where)
        _check_reductions(loop, where)
        _check_allocated(loop, where)
        plan.append(SharedLoop(loop, axis))
    return tuple(plan)


def _check_alone(kernel: ir.For, loop: ir.For, where: str) -> None:
    """Refuse statements around the loop: each block of the new axis would execute them."""
    stmt: Any = kernel
    while not stmt.same_as(loop):
        if isinstance(stmt, ir.SBlockRealize):
            if not ir.is_const(stmt.predicate, 1):
                break
            stmt = stmt.block.body
        elif (
            isinstance(stmt, ir.For) and (stmt.thread_binding is not None or _shared(stmt))
        ) or isinstance(stmt, tirx.AttrStmt):
            stmt = stmt.body
        else:
            break
    else:
        return
    what = f"{type(stmt).__name__} {stmt.loop_var.name if isinstance(stmt, ir.For) else ''}"
    raise cannot_lower(
        where,
        f"a {what.strip()} around it"
        if ir.uses_node(stmt, loop)
        else f"a {what.strip()} next to it",
        "a loop around all that the kernel does, inside of the axes of its thread blocks",
        "reorder it outwards, and set initial values in a separate kernel",
    )


def _shared(loop: ir.For) -> bool:
    return ACROSS_BLOCKS in loop.annotations


def _check_reductions(loop: ir.For, where: str) -> None:
    """Refuse what an iteration does to global memory next to combining: others are at it, too."""
    combined = find_reductions(loop)
    if not combined:
        raise cannot_lower(
            where,
            "no store that combines",
            "one, which combines the iterations",
            'request it: hs.async_store(..., reduce="add")',
        )
    tensors = [x.tensor for x in combined]
    emptied = {
        x.block: ir.with_block(x.block, body=ir.seq(), reads=[], writes=[]) for x in combined
    }
    rest = ir.replace_nodes(loop.body, ir.SBlock, emptied)
    stored = [x.buffer for x in ir.find_all(rest, ir.BufferStore) if _is_global(x.buffer)]
    stored += [
        region.source
        for block in ir.find_blocks(rest, ASYNC_OP)
        for region in block.writes
        if _is_global(region.source) and not _is(block, combined)
    ]
    used = [x for x in tensors if any(e.buffer.same_as(x) for e in find_effects(rest))]
    for tensor in (*used, *stored):
        raise cannot_lower(
            where,
            f"accesses of {tensor.name} that are no reductions",
            "iterations that combine by reductions alone: other blocks may access the same "
            "elements",
            'store it by hs.async_store(..., reduce="add"), or leave the loop serial',
        )


def _is_global(buffer: ir.Var) -> bool:
    return str(buffer.scope()) in ("", "global")


def _is(block: ir.SBlock, reductions: tuple[Reduction, ...]) -> bool:
    return any(block.same_as(x.block) for x in reductions)


def _check_allocated(loop: ir.For, where: str) -> None:
    """Refuse tiles that outlive an iteration: another block has them in another memory."""
    own = [x for block in ir.find_all(loop, ir.SBlock) for x in block.alloc_buffers]
    own += [x.buffer for x in ir.find_all(loop, tirx.DeclBuffer)]  # other views of these
    for effect in find_effects(loop):
        if _is_global(effect.buffer) or any(effect.buffer.same_as(x) for x in own):
            continue
        raise cannot_lower(
            where,
            f"{effect.buffer.name} in {effect.buffer.scope()}, which is allocated around it",
            "tiles that are allocated in each iteration",
            "compute_at what writes it inside of the loop",
        )
