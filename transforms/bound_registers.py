"""Tell the compiler how many thread blocks an SM is to have at once, which bounds their registers.

    for bx in thread_binding(264, "blockIdx.x", annotations={"tvm_hopper.blocks_per_sm": 2}):
        for tx in thread_binding(512, "threadIdx.x"):
            ...
  ->
    for bx in thread_binding(264, "blockIdx.x"):
        for tx in thread_binding(512, "threadIdx.x"):
            with attr(0, "tirx.launch_bounds_min_blocks_per_sm", 2): ...

The grid of a persistent kernel is as large as all SMs have room for.  The compiler keeps in
registers what it could compute again, and knows nothing of the grid: a register too many a thread
and half of the thread blocks wait for the others to end.

Before: what is asked of an axis stands on it.  After: no request for it is left.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.requests.keys import BLOCKS_PER_SM

LAUNCH_BOUNDS = "tirx.launch_bounds_min_blocks_per_sm"


def plan_bound(kernel: ir.For) -> int | None:
    """Return the thread blocks that an SM is to have, if the kernel says so."""
    axis = ir.thread_axes(kernel).get("blockIdx.x")
    found = axis.annotations.get(BLOCKS_PER_SM) if axis is not None else None
    return None if found is None else int(found)


def rewrite_bound(kernel: ir.For, num_blocks: int) -> ir.For:
    """Put the bound around what a thread does, and take the request away."""
    axes, zero = ir.thread_axes(kernel), tirx.IntImm("int32", 0)
    inner = list(axes.values())[-1]
    count = tirx.IntImm("int32", num_blocks)
    bound = ir.with_body(inner, tirx.AttrStmt(zero, LAUNCH_BOUNDS, count, inner.body))
    kernel = ir.replace_nodes(kernel, ir.For, {inner: bound})
    axis = ir.thread_axes(kernel)["blockIdx.x"]
    notes = {k: v for k, v in axis.annotations.items() if k != BLOCKS_PER_SM}
    return ir.replace_nodes(
        kernel, ir.For, {axis: ir.with_body(axis, axis.body, annotations=notes)}
    )


@prim_func_pass(opt_level=0, name="tvm_hopper.BoundRegisters")
class BoundRegisters:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Bound the registers of one function's kernels."""

        def bound(kernel: ir.For) -> Any:
            if (num_blocks := plan_bound(kernel)) is None:
                return kernel
            after = rewrite_bound(kernel, num_blocks)
            assert plan_bound(after) is None, "BoundRegisters left a request"
            return after

        return ir.map_kernels(func, bound)
