"""Launch nothing where a grid has no thread blocks.

    for bx in thread_binding(ceildiv(n, 4), "blockIdx.x"): ...
  ->
    if ceildiv(n, 4) > 0:
        for bx in thread_binding(ceildiv(n, 4), "blockIdx.x"): ...

A launch of no thread blocks is an error of the driver's (cuLaunchKernel: invalid value), and a
tensor without rows is none of the user's.

So it is along each axis of the grid that is known at run time only, where no condition around the
kernel says so already: one of tensors without elements does, around kernels with tensor maps.

Before: grids are final.  After: each kernel that we synchronise, or that is bound by memory, has
thread blocks when it is launched.
Not here: kernels that TVM synchronises, which it refuses to do under a condition.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.analysis.launches import conditions_around, known_at
from tvm_hopper.requests.bodies import is_memory_bound


def plan_guard(root: ir.Stmt, kernel: ir.For) -> list[Any]:
    """Return the numbers of thread blocks along axes that may be none, so far as `root` tells."""
    axes = ir.thread_axes(kernel)
    extents = [axes[tag].extent for tag in sorted(axes) if tag.startswith("blockIdx")]
    with known_at(conditions_around(root, kernel)) as analyzer:
        return [x for x in extents if not _is_counted(root, x) and not analyzer.can_prove(x > 0)]


def _is_counted(root: ir.Stmt, extent: Any) -> bool:
    """Tell a number that the host asks for: at least one, where there are tiles (CountBlocks)."""
    count = extent.value if isinstance(extent, tirx.Cast) else extent  # tensors counted by int64
    if not isinstance(count, ir.Var):
        return False
    binds = ir.find_all(root, tirx.Bind, lambda x: count.same_as(x.var))
    return any(
        call.op.name.endswith("call_packed")
        for bind in binds
        for call in ir.find_all(bind.value, ir.Call)
    )


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
        """Guard the kernels of one function."""

        def guard(kernel: ir.For) -> ir.Stmt:
            ours = ir.is_ours(kernel) or is_memory_bound(kernel)
            extents = plan_guard(func.body, kernel) if ours else []
            return rewrite_guard(kernel, extents) if extents else kernel

        return ir.map_kernels(func, guard)
