"""Skip the launch of a grid without thread blocks.

    launch(main_kernel, A, C, n, ceildiv(n, 4), 128)
  ->
    if ceildiv(n, 4) > 0:
        launch(main_kernel, A, C, n, ceildiv(n, 4), 128)

A launch of no thread blocks is an error of the driver's (cuLaunchKernel: invalid value), and a
tensor without rows is none of the user's.

So it is along each axis of the grid that is known at run time only, where no condition around the
launch says so already: one of tensors without elements does, around kernels with tensor maps.

Before: the host function is packed.  After: each kernel has thread blocks when it is launched.
Not here: before TVM's ThreadSync, which refuses to put a barrier under a condition.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.launches import KernelLaunch, find_launches, known_around
from tvm_hopper.transforms.kernel_pass import function_pass


def plan_guard(root: ir.Stmt, launch: KernelLaunch) -> list[Any]:
    """Return the numbers of thread blocks along axes that may be none, so far as `root` tells."""
    grid = [x for tag, x in launch.extents.items() if tag.startswith("blockIdx.")]
    extents = [x for x in grid if ir.static_int(x) is None and not _is_counted(root, x)]
    if not extents:
        return []
    with known_around(root, launch) as (analyzer, written_out):
        return [x for x in extents if not analyzer.can_prove(written_out(x) > 0)]


def _is_counted(root: ir.Stmt, extent: Any) -> bool:
    """Tell a number that the host requests: at least one, where there are tiles."""
    count = extent.value if isinstance(extent, tirx.Cast) else extent  # tensors counted by int64
    if not isinstance(count, ir.Var):
        return False
    binds = ir.find_all(root, tirx.Bind, lambda x: count.same_as(x.var))
    return any(
        call.op.name.endswith("call_packed")
        for bind in binds
        for call in ir.find_all(bind.value, ir.Call)
    )


def rewrite_guard(launch: ir.Stmt, extents: list[Any]) -> ir.Stmt:
    """Put the launch under a condition for each of them."""
    guarded: ir.Stmt = launch
    for extent in reversed(extents):
        guarded = ir.IfThenElse(extent > 0, guarded, None)
    return guarded


def _skip_empty(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Guard the launches of one host function."""
    if not ir.is_packed(func):
        return func
    planned = {x.stmt: plan for x in find_launches(func) if (plan := plan_guard(func.body, x))}
    if not planned:
        return func
    guarded = {x: rewrite_guard(x, plan) for x, plan in planned.items()}
    return func.with_body(ir.replace_nodes(func.body, ir.Evaluate, guarded))


SkipEmptyLaunches = function_pass("SkipEmptyLaunches", _skip_empty)
