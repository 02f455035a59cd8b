"""Let a thread load the last row in place of rows that do not exist.

    for r in unroll(4):
        with sblock("load"):
            where(bx * 64 + ty * 4 + r < 1001)
            tile[r] = X[bx * 64 + ty * 4 + r]
        with sblock("sum"):
            where(bx * 64 + ty * 4 + r < 1001)
            total[r] = total[r] + tile[r]
    for r in unroll(4):
        with sblock("store"):
            where(bx * 64 + ty * 4 + r < 1001)
            Y[bx * 64 + ty * 4 + r] = total[r]
  ->
    for r in unroll(4):
        with sblock("load"):
            tile[r] = X[min(bx * 64 + ty * 4 + r, 1000)]
        with sblock("sum"):
            total[r] = total[r] + tile[r]
    for r in unroll(4):
        with sblock("store"):
            where(bx * 64 + ty * 4 + r < 1001)
            Y[bx * 64 + ty * 4 + r] = total[r]

Several short rows of a thread are in flight together. A branch around each of them would keep the
compiler from mixing their instructions, and takes a fifth of all that there are.

Before: conditions stand on blocks; accesses name rows by the expressions in them.  After: stores
to memory alone have a condition on the rows of a thread.
Not here: threads with one row, rows that a serial loop counts, sums over rows, odd rows.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.keys import MEMORY_BOUND, ROW_REDUCTION
from tvm_hopper.transforms.kernel_pass import kernel_step

from .align_row_vectors_plan import plan_odd_rows


def plan_clamped_rows(kernel: ir.For) -> dict[Any, Any]:
    """Return the blocks that may compute with another row, and what stands for them."""
    grid = ir.thread_axes(kernel)["blockIdx.x"].loop_var
    loops = ir.find_all(kernel, ir.For)
    own = [x.loop_var for x in loops if x.kind == ir.ForKind.UNROLLED]
    serial = [x.loop_var for x in loops if x.kind == ir.ForKind.SERIAL]
    found: dict[Any, Any] = {}
    has_several = False
    for realize, stores in _leaves(kernel):
        bound, rest = _row_bound(realize, grid)
        in_memory = [x for x in stores if str(x.buffer.scope()) != "local"]
        if bound is None and not in_memory:
            continue
        block = None if bound is None else _clamped(realize, bound, grid)
        if block is None or ir.depends_on(bound, serial):
            return {}  # all that leaves the kernel is of rows that exist
        if not in_memory:
            found[realize] = ir.SBlockRealize([], rest, block)
        rows = [i for x in in_memory for i in x.indices if ir.depends_on(i, [grid])]
        has_several = has_several or ir.depends_on(rows, own)
    return found if has_several and plan_odd_rows(kernel) is None else {}


def _row_bound(realize: ir.SBlockRealize, grid: ir.Var) -> tuple[Any, Any]:
    """Return the upper bound of rows in a block's condition, if it has one, and the rest of it."""
    terms = list(ir.conjuncts(realize.predicate))
    bounds = [x for x in terms if ir.depends_on(x, [grid])]
    is_plain = len(bounds) == 1 and isinstance(bounds[0], tirx.LT)
    bound = bounds[0] if is_plain else tirx.const(True, "bool") if bounds else None
    return bound, ir.conjunction(x for x in terms if x is not bound)


def _leaves(kernel: ir.For) -> list[tuple[Any, list[Any]]]:
    """Return the blocks that store and have no others in them, with what they store."""
    found = [
        (x, ir.find_all(x.block.body, ir.BufferStore))
        for x in ir.find_all(kernel, ir.SBlockRealize)
        if not ir.find_all(x.block.body, ir.SBlock)
    ]
    return [x for x in found if x[1]]


def _clamped(realize: ir.SBlockRealize, bound: Any, grid: ir.Var) -> ir.SBlock | None:
    """Return a block whose loads name a row that exists; None for others than that of its bound."""
    if not isinstance(bound, tirx.LT):
        return None
    row, last = bound.a, ir.simplify(bound.b - 1)
    unclear = []

    def index(value: Any) -> Any:
        if not ir.depends_on(value, [grid]):
            return value
        times = _step(value, grid)
        of_row = _step(row, grid)
        if not times or not of_row or times % of_row:
            unclear.append(value)
            return value
        rest = ir.simplify(value - times // of_row * row)
        if any(ir.depends_on(rest, [x]) for x in ir.find_all(row, ir.Var)):
            unclear.append(value)
        return tirx.Min(row, last) * (times // of_row) + rest

    def load(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        return tirx.BufferLoad(node.source, [index(x) for x in node.indices])

    def region(node: Any, _mutator: Any) -> Any:
        ranges = [tvm.ir.Range.from_min_extent(index(x.min), x.extent) for x in node.region]
        return tirx.BufferRegion(node.source, ranges)

    block = ir.mutate(realize.block, [(ir.TensorLoad, load), (ir.TensorRegion, region)])
    return None if unclear else block


def _step(value: Any, grid: ir.Var) -> int | None:
    """Return by how much a value grows from a thread block to the next, if always as much."""
    after = ir.substitute(value, {grid: grid + 1})
    return ir.static_int(ir.simplify(after - value))


def rewrite_clamped_rows(kernel: ir.For, plan: dict[Any, Any]) -> ir.For:
    """Put the blocks without conditions in their places."""
    return ir.replace_nodes(kernel, ir.SBlockRealize, plan)


def _has_rows(kernel: ir.For) -> bool:
    axis = ir.thread_axes(kernel).get("blockIdx.x")
    return axis is not None and axis.annotations.get(MEMORY_BOUND) == ROW_REDUCTION


clamp_rows = kernel_step(plan_clamped_rows, rewrite_clamped_rows, when=_has_rows)
