"""Give each thread registers for its own elements, where one loop over two axes is split.

    for tx in thread_binding(32, "threadIdx.x"):
        Y = alloc((4, 128), "local")
        for o, v in grid(8, 2): Y[o // 2, (o * 64 + tx * 2 + v) % 128] = ..
        for o, v in grid(8, 2): .. = Y[o // 2, (o * 64 + tx * 2 + v) % 128]
  ->
        Y = alloc((8, 2), "local")
        for o, v in grid(8, 2): Y[o, v] = ..
        for o, v in grid(8, 2): .. = Y[o, v]

A fused loop leaves a quotient and a remainder, and the thread is part of both.  The number of the
element in the array, Y[.., ..] in rows, is plain: tx * 2 + (o * 64 + v).  All accesses begin at one
element and take the same steps, so that a thread meets its own elements only.

Before: blocks and regions, as stock CompactBufferAllocation left them.  After: these arrays have an
axis for each step, and no index of them has a thread.
Not here: arrays whose accesses take different steps, or that a pointer reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir as tvm_ir
from tvm import sym, tirx

from tvm_hopper import ir


@dataclass(frozen=True)
class ThreadElements:
    """A thread's elements of a register array.

    Attributes
    ----------
    buffer
        The array of all threads' elements.
    start
        The number of the thread's first element.
    steps
        Distance and count of elements on each new axis, the largest distance first.
    """

    buffer: ir.Var
    start: Any
    steps: tuple[tuple[int, int], ...]


def plan_registers(kernel: ir.For) -> tuple[ThreadElements, ...]:
    """Find the register arrays that a thread indexes by its own number in steps of its own."""
    found = []
    for block in ir.find_all(kernel, ir.SBlock):
        for buffer in (x for x in block.alloc_buffers if x.scope() == "local"):
            outside = [x for x in ir.find_all(kernel, ir.For) if ir.uses_node(x.body, block)]
            found.append(_elements(kernel, outside, ir.accesses(block, buffer), buffer))
    return tuple(x for x in found if x is not None)


def _elements(
    kernel: ir.For, outside: Sequence[ir.For], accesses: Sequence[Any], buffer: ir.Var
) -> ThreadElements | None:
    threads = [x.loop_var for x in outside if x.kind == ir.ForKind.THREAD_BINDING]
    indices = [list(x.indices) for x in accesses if not isinstance(x, ir.Call)]
    has_thread = any(ir.uses(x, v) for index in indices for x in index for v in threads)
    is_plain = len(indices) == len(accesses) and not buffer.ty.strides
    if not has_thread or not is_plain or not all(ir.static_int(x) for x in buffer.shape):
        return None
    loops = [x for x in ir.find_all(kernel, ir.For) if x not in outside]
    analyzer = _ranges(kernel)
    found = [_start_and_steps(buffer, x, loops, analyzer) for x in indices]
    start, steps = found[0]
    same = all(tvm_ffi.structural_equal(start, x) and steps == y for x, y in found[1:])
    return ThreadElements(buffer, start, steps) if same and steps else None


def _ranges(kernel: ir.For) -> sym.Analyzer:
    analyzer = sym.Analyzer()
    for loop in ir.find_all(kernel, ir.For):
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    return analyzer


def _flat(buffer: ir.Var, index: list[Any], analyzer: sym.Analyzer) -> Any:
    """Return the number of an element.  x % n is x - x // n * n: the quotient may be an index."""

    def remainder(node: tirx.FloorMod) -> Any:
        return node.a - ir.simplify(node.a // node.b, analyzer) * node.b

    index = [ir.replace(x, tirx.FloorMod, remainder) for x in index]
    return ir.simplify(ir.flat_index(buffer, index), analyzer)


def _start_and_steps(
    buffer: ir.Var, index: list[Any], loops: Sequence[ir.For], analyzer: sym.Analyzer
) -> tuple[Any, tuple[tuple[int, int], ...]]:
    """Return the element that an access begins at, and its steps; none where they may overlap."""
    flat = _flat(buffer, index, analyzer)
    start = ir.simplify(ir.substitute(flat, {x.loop_var: 0 for x in loops}), analyzer)
    used = [x for x in loops if ir.uses(flat, x.loop_var)]
    rest = ir.simplify(flat - ir.cast_like(start, flat), analyzer)
    linear = sym.detect_linear_equation(rest, [x.loop_var for x in used])
    if len(linear) != len(used) + 1 or not ir.is_const(linear[-1], 0):
        return start, ()
    counts = [
        (ir.static_int(x), ir.static_int(loop.extent))
        for x, loop in zip(linear[:-1], used, strict=True)
    ]
    steps: list[tuple[int, int]] = []
    for step, count in sorted(counts, key=lambda x: x[0] or 0):
        below, within = steps[-1] if steps else (1, 1)
        if step is None or count is None or step < below * within or step % below:
            return start, ()
        if steps and step == below * within:
            steps[-1] = (below, within * count)
        elif count > 1:
            steps.append((step, count))
    return start, tuple(reversed(steps)) or ((1, 1),)


def rewrite_registers(kernel: ir.For, plan: tuple[ThreadElements, ...]) -> ir.For:
    """Give each array an axis for each step of a thread."""
    analyzer = _ranges(kernel)
    for elements in plan:
        old, start, steps = elements.buffer, elements.start, elements.steps
        dtype = ir.dtype_of(old.shape[0])
        shape = tuple(tirx.IntImm(dtype, count) for _, count in steps)
        name, scope = str(old.name), str(old.scope())
        new = ir.new_buffer(name, shape, ir.dtype_of(old), scope, int(old.ty.data_alignment))

        def index(
            at: list[Any], old: ir.Var = old, start: Any = start, steps: Any = steps
        ) -> list[Any]:
            flat = _flat(old, at, analyzer)
            rest = ir.simplify(flat - ir.cast_like(start, flat), analyzer)
            found = []
            for step, _ in steps:
                found.append(ir.simplify(rest // step, analyzer))
                rest = ir.simplify(rest % step, analyzer)
            return found

        def region(at: list[Any], old: ir.Var = old, shape: Any = shape) -> list[Any]:
            if all(ir.is_const(x.extent, 1) for x in at):
                return [tvm_ir.Range.from_min_extent(x, 1) for x in index([r.min for r in at])]
            return [tvm_ir.Range.from_min_extent(0, x) for x in shape]

        kernel = ir.reallocate(ir.reindex(kernel, old, new, index, region), old, new)
    return kernel
