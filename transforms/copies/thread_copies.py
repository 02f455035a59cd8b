"""Distribute a copy over the threads, where the schedule does not.

    for i, j in grid(8, 100):
        with sblock("copy", async_copy="auto"): A[m + i, j] = tile[i, j]
  ->
    for turn in range(7):                                         128 threads
        if turn * 128 + tx < 800:
            A[m + (turn * 128 + tx) // 100, (turn * 128 + tx) % 100] = tile[...]

A request for a copy by hardware leaves its loops to the hardware. Where threads make it after all,
all of them would run through the whole tile and write the same bytes.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm_hopper import ir
from tvm_hopper.analysis.injective import is_injective
from tvm_hopper.requests.keys import DISJOINT_WRITES
from tvm_hopper.transforms.common.copy_nests import counts_threads

THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


def deal_out(kernel: ir.For, nest: ir.Stmt) -> ir.Stmt:
    """Return a copy's loops distributed among the threads of a kernel.

    What thread axes take part in stays as it is scheduled, and so does the copy of a warp group
    that multiplies: its threads are not on the axes yet.
    """
    axes = ir.thread_axes(kernel)
    threads = [axes[tag] for tag in THREADS if tag in axes]
    loops, body = ir.loop_nest(nest)
    if not isinstance(body, ir.SBlockRealize) or not isinstance(body.block.body, ir.BufferStore):
        return nest
    block = body.block
    while loops and loops[-1].kind == ir.ForKind.VECTORIZED:  # each thread's own
        body = loops.pop()
    if not _may_be_shared(kernel, nest, threads, loops, block.body):
        return nest
    # Elements are numbered by static extents, but for the outermost of the loops that share them.
    counted = [ir.static_int(x.extent) is not None for x in loops]
    first = max((i for i, known in enumerate(counted) if not known), default=0)
    around, loops = loops[:first], loops[first:]
    number: Any = 0
    for axis in reversed(threads):
        number = ir.as_int32(axis.loop_var) + number * int(axis.extent)
    stmt = _turns(loops, body, number, prod(int(x.extent) for x in threads))
    for loop in reversed(around):
        stmt = ir.For(loop.loop_var, loop.min, loop.extent, ir.ForKind.SERIAL, stmt)
    return ir.opaque_block(
        block.name_hint,
        stmt,
        reads=[ir.full_region(x.source) for x in block.reads],
        writes=[ir.full_region(x.source) for x in block.writes],
        annotations={DISJOINT_WRITES: 1},
    )


def _may_be_shared(
    kernel: ir.For,
    nest: ir.Stmt,
    threads: list[ir.For],
    loops: list[ir.For],
    store: ir.BufferStore,
) -> bool:
    """Tell whether any thread may do any iteration of some loops of a nest."""
    if not threads or None in [ir.static_int(x.extent) for x in threads]:
        return False
    if any(ir.uses(nest, axis.loop_var) for axis in threads) or not counts_threads(kernel):
        return False
    if _is_of_some_threads(kernel, nest, threads):
        return False
    if not all(x.kind == ir.ForKind.SERIAL and ir.is_const(x.min, 0) for x in loops):
        return False
    extents = {x.loop_var: x.extent for x in ir.loop_nest(nest)[0]}
    return is_injective(list(store.indices), extents)


def _is_of_some_threads(kernel: ir.For, nest: ir.Stmt, threads: list[ir.For]) -> bool:
    """Tell a nest in a branch that only some threads take, as a pass before leaves a copy."""
    axes = [x.loop_var for x in threads]
    branches = ir.find_all(kernel, ir.IfThenElse)
    return any(ir.depends_on(x.condition, axes) and ir.uses_node(x, nest) for x in branches)


def _turns(loops: list[ir.For], body: ir.Stmt, thread: Any, num_threads: int) -> ir.Stmt:
    """Build the loop in which each thread copies one element or vector per iteration."""
    counts = [_plain_int(x.extent) for x in loops]
    total = prod(counts)

    def one(turn: Any) -> ir.Stmt:
        number = rest = ir.simplify(thread + turn * num_threads)
        values = {}
        for loop, count in zip(reversed(loops), reversed(counts), strict=True):
            values[loop.loop_var] = ir.simplify(rest if loop is loops[0] else rest % count)
            rest = rest // count
        stmt = ir.substitute(body, values)
        if isinstance(total, int) and total % num_threads == 0:
            return stmt
        return ir.IfThenElse(ir.simplify(number < total), stmt, None)

    turns = (total + num_threads - 1) // num_threads
    return ir.make_loop("turn", turns if isinstance(turns, int) else ir.simplify(turns), one)


def _plain_int(extent: Any) -> Any:
    known = ir.static_int(extent)
    return extent if known is None else known
