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
from tvm import ir as tvm_ir, sym, tirx

from tvm_hopper import ir


@dataclass(frozen=True)
class ThreadElements:
    """A thread's elements of a register array.

    - `buffer`: the array of all threads' elements.
    - `start`: the number of the thread's first element.
    - `steps`: distance and count of elements on each new axis, the largest distance first.
    - `ranges`: extents of the kernel's loops, as an analyzer knows them.
    """

    buffer: ir.Var
    start: Any
    steps: tuple[tuple[int, int], ...]
    ranges: sym.Analyzer

    @property
    def extents(self) -> tuple[Any, ...]:
        """The number of steps on each new axis."""
        return tuple(ir.cast_like(count, self.buffer.shape[0]) for _, count in self.steps)

    def index(self, old: list[Any]) -> list[Any]:
        """Return the number of steps on each axis."""
        flat = _flat(self.buffer, old, self.ranges)
        rest = ir.simplify(flat - ir.cast_like(self.start, flat), self.ranges)
        found = []
        for step, _ in self.steps:
            found.append(ir.simplify(rest // step, self.ranges))
            rest = ir.simplify(rest % step, self.ranges)
        return found

    def region(self, old: list[Any]) -> list[Any]:
        """Move an element; all of them stand for several."""
        if all(ir.is_const(x.extent, 1) for x in old):
            return [tvm_ir.Range.from_min_extent(x, 1) for x in self.index([r.min for r in old])]
        return [tvm_ir.Range.from_min_extent(0, x) for x in self.extents]


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
    indices = [list(x.indices) for x in accesses if not isinstance(x, ir.Call)]
    is_plain = len(indices) == len(accesses) and not buffer.ty.strides
    if not is_plain or not all(ir.static_int(x) for x in buffer.shape):
        return None
    threads = [x.loop_var for x in outside if x.kind == ir.ForKind.THREAD_BINDING]
    if not any(ir.depends_on(x, threads) for index in indices for x in index):
        return None
    loops = [x for x in ir.find_all(kernel, ir.For) if x not in outside]
    analyzer = sym.Analyzer()
    for loop in ir.find_all(kernel, ir.For):
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    found = [_start_and_steps(buffer, x, loops, analyzer) for x in indices]
    start, steps = found[0]
    same = all(tvm_ffi.structural_equal(start, x) and steps == y for x, y in found[1:])
    return ThreadElements(buffer, start, steps, analyzer) if same and steps else None


def _flat(buffer: ir.Var, index: list[Any], analyzer: sym.Analyzer) -> Any:
    """Return the number of an element.  x % n is x - x // n * n: the quotient may be an index."""

    def remainder(node: tirx.FloorMod) -> Any:
        return node.a - ir.simplify(node.a // node.b, analyzer) * node.b

    index = [ir.replace(x, tirx.FloorMod, remainder) for x in index]
    return ir.simplify(ir.flat_index(buffer, index), analyzer)


def _start_and_steps(
    buffer: ir.Var, index: list[Any], loops: Sequence[ir.For], analyzer: sym.Analyzer
) -> tuple[Any, tuple[tuple[int, int], ...]]:
    """Return the element that an access begins at, and its steps; none where they are no steps."""
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
    return start, _merged(counts)


def _merged(counts: list[tuple[int | None, int | None]]) -> tuple[tuple[int, int], ...]:
    """Join steps that go on where smaller ones end; none where the sums of two are alike."""
    steps: list[tuple[int, int]] = []
    for step, count in sorted(counts, key=lambda x: x[0] or 0):
        below, within = steps[-1] if steps else (1, 1)
        if step is None or count is None or step < below * within or step % below:
            return ()
        if steps and step == below * within:
            steps[-1] = (below, within * count)
        elif count > 1:
            steps.append((step, count))
    return tuple(reversed(steps)) or ((1, 1),)


def rewrite_arrays(kernel: ir.For, plan: Sequence[Any]) -> ir.For:
    """Put smaller arrays in place: each has `buffer`, `extents`, `index` and `region`."""
    for part in plan:
        old = part.buffer
        dtype, scope, alignment = ir.dtype_of(old), str(old.scope()), int(old.ty.data_alignment)
        new = ir.new_buffer(str(old.name), part.extents, dtype, scope, alignment)
        kernel = ir.reallocate(ir.reindex(kernel, old, new, part.index, part.region), old, new)
    return kernel
