"""Move the guards of an asynchronous store from its elements to the iterations around it.

    for i, j in grid(8, 64): where k < 3 and b * 8 + i < n: C[...] = tile[i, j]
  ->
    if k < 3:
        for i, j in grid(8, 64): where b * 8 + i < n: C[...] = tile[i, j]

A condition on elements is what the hardware cuts off; one on iterations decides whether there is a
store at all.

Before: copies are requests.  After: no condition of theirs speaks of loops around them alone.
Not here: conditions on threads, and those that data decides; stores that are left to threads;
loads, which every iteration of a pipeline makes, since iterations are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.requests.keys import BY_THREADS
from tvm_hopper.transforms.common.copy_nests import CopyNest, fills_tile, find_copy_nests
from tvm_hopper.transforms.kernel_pass import kernel_pass

from .propagate_tile_guards import is_of_iterations, thread_variables


@dataclass(frozen=True)
class Hoist:
    """The terms of a store's condition that go around its loops, and those that stay."""

    copy: CopyNest
    around: tuple[Any, ...]
    kept: tuple[Any, ...]


def plan_hoists(kernel: ir.For) -> tuple[Hoist, ...]:
    """Find the stores with such a condition."""
    found = []
    for copy in find_copy_nests(kernel):
        if copy.mechanism == BY_THREADS or fills_tile(copy):
            continue
        own = [x.loop_var for x in ir.loop_nest(copy.nest)[0]]
        moving = [*own, *thread_variables(kernel)]
        terms = list(ir.conjuncts(copy.realize.predicate))
        around = tuple(x for x in terms if is_of_iterations(x, moving))
        if around:
            kept = tuple(x for x in terms if not is_of_iterations(x, moving))
            found.append(Hoist(copy, around, kept))
    return tuple(found)


def rewrite_hoists(kernel: ir.For, plan: tuple[Hoist, ...]) -> ir.For:
    """Put each condition around the loops of its store."""
    placed = {}
    for hoist in plan:
        realize = hoist.copy.realize
        rest = ir.SBlockRealize(realize.iter_values, ir.conjunction(hoist.kept), realize.block)
        nest = ir.replace_nodes(hoist.copy.nest, ir.SBlockRealize, {realize: rest})
        placed[hoist.copy.nest] = ir.IfThenElse(ir.conjunction(hoist.around), nest, None)
    return ir.replace_nodes(kernel, ir.Stmt, placed)


HoistStoreGuards = kernel_pass("HoistStoreGuards", plan_hoists, rewrite_hoists)
