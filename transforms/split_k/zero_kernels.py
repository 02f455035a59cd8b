"""Launch a kernel that zeroes a tensor before another kernel adds to it or counts in it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper import ir

ZERO_THREADS, ZERO_ELEMENTS = 256, 4  # of a thread block; each thread


def zero_kernel(output: ir.Var, fixed: Mapping[int, int] | None = None) -> ir.For:
    """Build a kernel that sets a tensor to zero, or what has some indices in it."""
    fixed = fixed or {}
    axes = [x for x in range(len(output.shape)) if x not in fixed]
    shape = [tirx.Cast("int64", output.shape[x]) for x in axes]
    total = prod(shape[1:], start=shape[0])
    size = ZERO_THREADS * ZERO_ELEMENTS
    block, thread = ir.Var("block", "int32"), ir.Var("thread", "int32")

    def one(i: Any) -> ir.Stmt:
        place = tirx.Cast("int64", block) * size + i * ZERO_THREADS + thread
        indices: list[Any] = [fixed.get(x) for x in range(len(output.shape))]
        rest = place
        for axis, extent in zip(reversed(axes), reversed(shape), strict=True):
            indices[axis] = ir.cast_like(ir.simplify(rest % extent), output.shape[axis])
            rest = rest // extent
        zero = tirx.const(0, ir.dtype_of(output))
        return ir.IfThenElse(place < total, ir.BufferStore(output, zero, indices), None)

    body = ir.opaque_block(
        "zero", ir.make_loop("i", ZERO_ELEMENTS, one), writes=[ir.full_region(output)]
    )
    count = tirx.Cast("int32", (total + (size - 1)) // size)
    kernel: Any = body
    for var, extent, tag in (
        (thread, tirx.IntImm("int32", ZERO_THREADS), "threadIdx.x"),
        (block, ir.simplify(count), "blockIdx.x"),
    ):
        axis = tirx.IterVar(None, ir.Var(tag, "int32"), tirx.IterVar.ThreadIndex, tag)
        kernel = ir.For(var, 0, extent, ir.ForKind.THREAD_BINDING, kernel, axis)
    return kernel
