"""Test once per iteration of the row loop whether the row exists.

    for r in range(63):
        with sblock("load"):
            where(r * 16 + bx < 1000)
            tile[0] = X[r * 16 + bx]
        with sblock("sum"):
            where(r * 16 + bx < 1000)
            total[0] = total[0] + tile[0]
  ->
    for r in range(63):
        if r * 16 + bx < 1000:
            with sblock("load"): tile[0] = X[r * 16 + bx]
            with sblock("sum"): total[0] = total[0] + tile[0]

An iteration without a row has no barrier either: its condition is the same for all thread blocks of
a cluster, which have the same rows.

Before: reductions across threads are shuffles and barriers. After: in memory-bound kernels, a guard
that is uniform in a thread block is around the iteration, not on each of its blocks.
Not here: iterations that leave values in registers, as sums of columns: the compiler does better
with conditions on what is added to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.transforms.kernel_pass import kernel_step

_THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


@dataclass(frozen=True)
class Turns:
    """A loop, and the condition under which an iteration of it does anything."""

    loop: ir.For
    condition: Any


def plan_guards(kernel: ir.For) -> tuple[Turns, ...]:
    """Find the loops whose iterations have one guard."""
    axes = ir.thread_axes(kernel)
    threads = [axes[x].loop_var for x in _THREADS if x in axes]
    found = []
    for loop in ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.SERIAL):
        if ir.is_const(loop.extent, 1):
            continue
        stores = [(x, _own_stores(x.block)) for x in ir.find_all(loop.body, ir.SBlockRealize)]
        lasting = [x for x, own in stores if any(map(_is_memory, own))]
        own = [x.loop_var for x in ir.find_all(loop.body, ir.For)]
        terms = list(ir.conjuncts(lasting[0].predicate)) if lasting else []
        for term in terms:
            if ir.depends_on(term, [loop.loop_var]) and not ir.depends_on(term, [*threads, *own]):
                if all(_has(x, term) for x in lasting) and not _keeps(kernel, loop, stores):
                    found.append(Turns(loop, term))
                break
    return tuple(found)


def _own_stores(block: Any) -> list[Any]:
    """Return the stores of a block, but for those of blocks inside of it."""
    inner = [s for b in ir.find_all(block.body, ir.SBlock) for s in _stores(b)]
    return [x for x in _stores(block) if not any(x.same_as(y) for y in inner)]


def _stores(block: Any) -> list[Any]:
    return ir.find_all(block.body, ir.BufferStore)


def _is_memory(store: ir.BufferStore) -> bool:
    return str(store.buffer.scope()) in ("", "global")


def _keeps(kernel: ir.For, loop: ir.For, stores: list[tuple[Any, list[Any]]]) -> bool:
    """Tell whether an iteration of a loop leaves results outside of memory."""
    everywhere, inside = ir.count_accesses(kernel), ir.count_accesses(loop)
    kept = {x.buffer for _, own in stores for x in own if not _is_memory(x)}
    return any(everywhere[x] > inside[x] for x in kept)


def _has(realize: ir.SBlockRealize, term: Any) -> bool:
    return any(tvm_ffi.structural_equal(x, term) for x in ir.conjuncts(realize.predicate))


def rewrite_guards(kernel: ir.For, plan: tuple[Turns, ...]) -> Any:
    """Put the condition around the iteration, and take it off the blocks."""
    for one in plan:
        # the loop itself may have been rebuilt around another one
        loops = ir.find_all(kernel, ir.For)
        (loop,) = (x for x in loops if x.loop_var.same_as(one.loop.loop_var))

        def drop(realize: ir.SBlockRealize, term: Any = one.condition) -> ir.SBlockRealize:
            if not _has(realize, term):
                return realize
            kept = [
                x for x in ir.conjuncts(realize.predicate) if not tvm_ffi.structural_equal(x, term)
            ]
            return ir.SBlockRealize([], ir.conjunction(kept), realize.block)

        body = tirx.IfThenElse(one.condition, ir.replace(loop.body, ir.SBlockRealize, drop), None)
        kernel = ir.replace_nodes(kernel, ir.For, {loop: ir.with_body(loop, body)})
    return kernel


guard_row_loop = kernel_step(plan_guards, rewrite_guards, when=is_memory_bound)
