"""Launch nothing where a grid has no thread blocks.

    for bx in thread_binding(ceildiv(n, 4), "blockIdx.x"): ...
  ->
    if ceildiv(n, 4) > 0:
        for bx in thread_binding(ceildiv(n, 4), "blockIdx.x"): ...

A launch of no thread blocks is an error of the driver's (cuLaunchKernel: invalid value), and a
tensor without rows is none of the user's.

So it is along each axis of the grid that is known at run time only.

Before: grids are final.  After: each kernel that is bound by memory has thread blocks when it is
launched.
"""

from __future__ import annotations

from typing import Any

from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound


def plan_guard(kernel: ir.For) -> list[Any]:
    """Return the numbers of thread blocks along axes where they are known at run time only."""
    axes = ir.thread_axes(kernel)
    extents = [axes[tag].extent for tag in sorted(axes) if tag.startswith("blockIdx")]
    return [x for x in extents if ir.static_int(x) is None]


def rewrite_guard(kernel: ir.For, extents: list[Any]) -> ir.Stmt:
    """Put the kernel under a condition for each of them."""
    guarded: ir.Stmt = kernel
    for extent in reversed(extents):
        guarded = ir.IfThenElse(extent > 0, guarded, None)
    return guarded


@prim_func_pass(opt_level=0, name="tvm_hopper.SkipEmpty")
class SkipEmpty:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Guard the memory-bound kernels of one function."""

        def guard(kernel: ir.For) -> ir.Stmt:
            extents = plan_guard(kernel) if is_memory_bound(kernel) else []
            return rewrite_guard(kernel, extents) if extents else kernel

        return ir.map_kernels(func, guard)
