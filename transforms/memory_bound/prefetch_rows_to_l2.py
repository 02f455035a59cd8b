"""Prefetch the rows of later iterations into L2.

    for r in serial(63, annotations={"tvm_hopper.prefetch_rows": 1}):
        for v in vectorized(8):
            with sblock("load"):
                where(r * 16 + bx < 1000)
                tile[v] = X[r * 16 + bx, tx * 8 + v]
  ->
    for r in range(63):
        if tx == 0 and (r + 1) * 16 + bx < 1000:
            cp.async.bulk.prefetch.L2.global(&X[(r + 1) * 16 + bx, 0], 4096)
        for v in vectorized(8): ...

Rows that wait in registers are as many as registers hold; L2 prefetches need none. One thread
requests a whole row, with one instruction.

Before: loads of rows are blocks that copy elements into registers.  After: no request for it is
left.
Not here: rows that are no multiple of 16 bytes, and processors without the instruction (PTX ISA
9.1, cp.async.bulk.prefetch: sm_90), which load as before. Of rows that a cluster shares each thread
block requests its part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import bulk
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.keys import PREFETCH_ROWS
from tvm_hopper.requests.targets import processor_of
from tvm_hopper.transforms.mechanisms.bulk_emit import BULK

from .stage_rows_in_shared_plan import PART_AXIS, loaded_element, part_columns, requested


@dataclass(frozen=True)
class RowPrefetch:
    """A tensor of which a loop loads one row per iteration: the row's start, guard and bytes."""

    loop: ir.For
    first: Any  # its first element
    exists: Any
    num_bytes: int


def plan_prefetches(kernel: ir.For) -> tuple[RowPrefetch, ...]:
    """Find the rows that loops with a request load."""
    axes = ir.thread_axes(kernel)
    threads = [x.loop_var for t, x in axes.items() if t == "threadIdx.x"]
    found: list[RowPrefetch] = []
    for loop in requested(kernel, PREFETCH_ROWS):
        inner = [x.loop_var for x in ir.find_all(loop.body, ir.For)]
        turn = loop.loop_var + int(loop.annotations[PREFETCH_ROWS])
        place = {loop.loop_var: turn, **dict.fromkeys([*inner, *threads], 0)}
        for realize in ir.find_all(loop.body, ir.SBlockRealize):
            load = loaded_element(realize.block.body)
            if load is None or not ir.depends_on(list(load.indices), [loop.loop_var]):
                continue
            index = [ir.simplify(ir.substitute(x, place)) for x in load.indices]
            columns = part_columns(load.source, index[-1], axes.get(PART_AXIS))
            size = columns * dtype_bytes(ir.dtype_of(load.source))
            known = any(x.loop.same_as(loop) and x.first.source.same_as(load.source) for x in found)
            if size and not known:
                exists = ir.simplify(ir.substitute(realize.predicate, place))
                first = tirx.BufferLoad(load.source, index)
                found.append(RowPrefetch(loop, first, exists, size))
    return tuple(found)


def rewrite_prefetches(kernel: ir.For, plan: tuple[RowPrefetch, ...]) -> Any:
    """Ask for the planned rows at the start of each iteration, and remove the requests."""
    thread = ir.thread_axes(kernel)["threadIdx.x"].loop_var
    planned: dict[ir.For, ir.Stmt] = {}
    for loop in requested(kernel, PREFETCH_ROWS):
        asked = [
            ir.IfThenElse(
                ir.conjunction([thread.equal(0), *ir.conjuncts(one.exists)]),
                ir.Evaluate(bulk.prefetch(tirx.address_of(one.first), one.num_bytes)),
                None,
            )
            for one in plan
            if one.loop.same_as(loop)
        ]
        planned[loop] = ir.with_body(loop, ir.seq([*asked, loop.body]))
    return ir.without_annotations(ir.replace_nodes(kernel, ir.For, planned), PREFETCH_ROWS)


def prefetch_rows_to_l2(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Prefetch the rows of one function's memory-bound kernels."""
    is_there = BULK.loads_on(processor_of(func))

    def prefetch(kernel: ir.For) -> Any:
        if not is_memory_bound(kernel) or not requested(kernel, PREFETCH_ROWS):
            return kernel
        after = rewrite_prefetches(kernel, plan_prefetches(kernel) if is_there else ())
        assert not requested(after, PREFETCH_ROWS), "prefetch_rows_to_l2 left a request"
        return after

    return ir.map_kernels(func, prefetch)
