"""Launch nothing where a grid has no thread blocks.

    for bx in thread_binding(ceildiv(n, 4), "blockIdx.x"): ...
  ->
    if ceildiv(n, 4) > 0:
        for bx in thread_binding(ceildiv(n, 4), "blockIdx.x"): ...

A launch of no thread blocks is an error of the driver's (cuLaunchKernel: invalid value), and a
tensor without rows is none of the user's.

Before: grids are final.  After: each kernel that is bound by memory has thread blocks when it is
launched.
"""

from __future__ import annotations

from typing import Any

from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound


def plan_guard(kernel: ir.For) -> Any:
    """Return the number of thread blocks, if it is known at run time only; else None."""
    extent = ir.thread_axes(kernel)["blockIdx.x"].extent
    return extent if ir.static_int(extent) is None else None


def rewrite_guard(kernel: ir.For, num_blocks: Any) -> ir.Stmt:
    """Put the kernel under a condition."""
    return ir.IfThenElse(num_blocks > 0, kernel, None)


@prim_func_pass(opt_level=0, name="tvm_hopper.SkipEmpty")
class SkipEmpty:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Guard the memory-bound kernels of one function."""

        def guard(kernel: ir.For) -> ir.Stmt:
            num_blocks = plan_guard(kernel) if is_memory_bound(kernel) else None
            return kernel if num_blocks is None else rewrite_guard(kernel, num_blocks)

        return ir.map_kernels(func, guard)
