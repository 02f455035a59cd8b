"""Rules for asynchronous copies by any mechanism: other accesses of the tile and the tensor."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.access import AffineAccess
from tvm_hopper.analysis.divisors import divisor
from tvm_hopper.analysis.effects import writes
from tvm_hopper.analysis.injective import is_injective
from tvm_hopper.analysis.launches import conditions_around
from tvm_hopper.analysis.vector_runs import starts_aligned
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS
from tvm_hopper.requests.keys import ASYNC_COPY

from .transfer import Transfer
from .warp_group_view import GroupView


def check_loops(copy: Transfer, loops: Iterable[ir.For]) -> None:
    """Refuse loops of a copy whose iterations cannot be counted now, or not from 0."""
    for loop in loops:
        if ir.static_int(loop.extent) is None or not ir.is_const(loop.min, 0):
            raise cannot_lower(
                copy.where,
                f"loop {loop.loop_var.name} from {loop.min} of {loop.extent} iterations",
                "loops from 0, each of a static number of iterations",
                "split by a constant",
            )


def check_once(copy: Transfer) -> None:
    """Refuse a load that stores an element of its tile more than once.

    Which iteration of the program was the last one is not what parallel copies know.
    """
    extents = {loop.loop_var: loop.extent for loop in copy.loops}
    if not copy.fills_shared or is_injective(list(copy.dst.indices), extents, True):
        return
    raise cannot_lower(
        copy.where,
        f"{copy.dst.buffer.name}{list(copy.dst.indices)}, which several iterations of "
        f"{', '.join(loop.loop_var.name for loop in copy.loops)} store",
        "each element of the tile stored once: asynchronous copies are not ordered",
        "remove the overwritten iterations, or let threads copy",
    )


def count_left(left: Any, most: Any) -> Any:
    """Return how many of at most so many are left, none where it is negative; of `left`'s type.

    The rest of a large tensor fits no int32, so that nobody narrows it before this.
    """
    zero, most = (ir.cast_like(x, left) for x in (0, most))
    return tirx.max(zero, tirx.min(most, left))


def is_aligned_start(end: AffineAccess, run: Iterable[ir.For], length: int) -> bool:
    """Tell whether each run of elements starts at a multiple of a length in memory.

    - `end`: the tile or the tensor.
    - `run`: the loops within a run, which starts where they are 0.
    - `length`: in elements.
    """
    starts = zip(end.start(run), end.strides, strict=True)
    is_aligned = all(divisor(index) * divisor(stride) % length == 0 for index, stride in starts)
    return is_aligned and starts_aligned(end.buffer, length)


def is_aligned_slot(tile: AffineAccess, length: int) -> bool:
    """Tell whether each slot of a ring of such tiles starts at a multiple of some elements."""
    return prod(map(divisor, tile.buffer.shape)) % length == 0


def check_alone(kernel: ir.For, copy: Transfer) -> None:
    """Refuse a tensor that the kernel touches otherwise: nothing orders that with the copy.

    Nor would waiting be enough: another proxy reads or writes it (PTX ISA 9.1, 8.6).
    """
    tensor = copy.tensor.buffer
    if copy.fills_shared and writes(kernel, tensor):
        raise cannot_lower(
            copy.where,
            f"stores to {tensor.name} in the same kernel",
            "a tensor that the kernel does not write: the copy may read it at any time",
            f"write the result to another tensor, or remove {ASYNC_COPY}",
        )
    if copy.fills_shared:
        return
    rest = ir.replace_nodes(kernel, ir.Stmt, {copy.nest: ir.seq()})
    if ir.accesses(rest, tensor):
        raise cannot_lower(
            copy.where,
            f"other accesses of {tensor.name} in the same kernel",
            "a tensor that only this copy accesses: it may write it at any time",
            f"give them a separate tensor, or remove {ASYNC_COPY}",
        )
    if copy.reduce:  # whose elements may be combined again, each time by an atomic operation
        return
    _check_elements_apart(kernel, copy)


def _check_elements_apart(kernel: ir.For, copy: Transfer) -> None:
    """Refuse a store whose iterations may store to one element."""
    threads = [loop for tag, loop in ir.thread_axes(kernel).items() if tag.startswith("threadIdx")]
    loops = [x for x in ir.find_all(kernel, ir.For) if not any(x.same_as(y) for y in threads)]
    around = [x for x in loops if ir.uses_node(x.body, copy.nest)]
    extents = {x.loop_var: x.extent for x in (*around, *copy.loops)}
    terms = [x.term for x in conditions_around(kernel, copy.nest)]
    predicate = ir.conjunction([*terms, *([] if copy.condition is None else [copy.condition])])
    indices: Any = list(copy.dst.indices)
    for axis in (x for x in threads if ir.depends_on(copy.src.indices, [x.loop_var])):
        # warp groups store parts of their own, see layouts/warp_group_tile_parts.py
        view = GroupView.of(axis.loop_var)
        indices, predicate = [view.split(index) for index in indices], view.split(predicate)
        extents[view.group] = -(-axis.extent // WARP_GROUP_THREADS)
    if not is_injective(indices, extents, predicate):
        raise cannot_lower(
            copy.where,
            f"elements {copy.dst.buffer.name}{list(copy.dst.indices)} that several iterations of "
            f"{', '.join(x.loop_var.name for x in around) or 'its loops'} may store",
            "a different element for each: asynchronous stores are not ordered",
            f"store after the loop, or remove {ASYNC_COPY}",
        )


def check_partial(kernel: ir.For, copy: Transfer) -> None:
    """Refuse a store under a predicate into a tile that holds something from before.

    TMA fills with zeros what the predicate leaves out, and in a ring it is another slot's.
    """
    if not copy.is_partial or not copy.fills_shared:
        return
    tile = copy.tile.buffer
    owners = [
        block
        for block in ir.find_all(kernel, ir.SBlock)
        if any(buffer.same_as(tile) for buffer in block.alloc_buffers)
    ]
    loops = ir.find_all(owners[0].body, ir.For) if owners else []
    kept = any(ir.uses_node(x, copy.nest) and not x.same_as(copy.nest) for x in loops)
    stores = ir.find_all(kernel, ir.BufferStore, lambda x: x.buffer.same_as(tile))
    if kept or not owners or len(stores) > 1:
        raise cannot_lower(
            copy.where,
            f"a predicate on the store ({copy.condition}) into a tile that keeps other elements",
            "a store of the whole tile, or a tile that is new in each iteration",
            "pad the block, so that the bounds become if_then_else(in bounds, load, 0)",
        )


def check_inside(kernel: ir.For, copy: Transfer) -> None:
    """Refuse a predicate that keeps a copy from storing next to its tile.

    Where cp.async loads nothing it stores zeros, so that each element needs a place in the tile.
    """
    if not copy.is_partial or not copy.fills_shared:
        return
    analyzer = sym.Analyzer()
    for loop in ir.find_all(kernel, ir.For):
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    start = {x.loop_var: ir.cast_like(0, x.loop_var) for x in copy.loops}
    for index, extent in zip(copy.tile.indices, copy.tile.buffer.shape, strict=True):
        first = ir.simplify(ir.substitute(index, start))
        if ir.is_const(first, 0):
            continue
        if not (analyzer.can_prove(first >= 0) and analyzer.can_prove(index < extent)):
            raise cannot_lower(
                copy.where,
                f"a store at {list(copy.tile.indices)} under the predicate {copy.condition}",
                f"places inside of the tile {list(copy.tile.buffer.shape)} for what it leaves out, "
                "too: zeros are stored there",
                "let threads copy, or begin the tile where its first element is",
            )
