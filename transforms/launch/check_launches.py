"""Check each launch on the host, at each call: within the hardware's limits, and not empty.

    call_ffi_kernel("main_kernel", ..., (m + 63) // 64, 9, 256)       along blockIdx.y, x, threads
  ->
    assert (m + 63) // 64 <= 65535, "main_kernel: found (m + 63) // 64 thread blocks along ..."
    if (m + 63) // 64 > 0:
        call_ffi_kernel("main_kernel", ..., (m + 63) // 64, 9, 256)

The driver would refuse what is too large without a word about it.  It refuses a launch of no thread
blocks, too (cuLaunchKernel: invalid value), and a tensor without rows is no error of the user's.

Before: the host function is packed.  After: extents that symbols decide are checked, unless their
type or the conditions around the launch bound them, as those around kernels with tensor maps do.
Not here: static extents, which the build refuses (`static_check.room`); in front of TVM's
ThreadSync, which refuses to put a barrier under a condition.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx
from tvm_ffi import structural_equal

from tvm_hopper import ir
from tvm_hopper.analysis.launches import KernelLaunch, as_plain_text, find_launches, known_around
from tvm_hopper.facts.programming_model import MAX_EXTENTS, MAX_THREADS
from tvm_hopper.requests.keys import PERSISTENT
from tvm_hopper.transforms.kernel_pass import function_pass


def plan_checks(root: ir.Stmt, launch: KernelLaunch) -> tuple[list[tirx.AssertStmt], list[Any]]:
    """Return the limits to check in front of a launch, and the extents that may be none."""
    grid = [x for tag, x in launch.extents.items() if tag.startswith("blockIdx.")]
    grid = [x for x in grid if ir.static_int(x) is None and not _is_counted(root, x)]
    counts = [x for x in _counts(launch.extents) if ir.static_int(x[1]) is None]
    limits: list[tirx.AssertStmt] = []
    if not (grid or counts):
        return limits, grid
    with known_around(root, launch) as (analyzer, written_out):
        for what, extent, most in counts:
            value = written_out(extent)
            if _largest(value) <= most or analyzer.can_prove(value <= most):
                continue
            message = (
                f"{launch.kernel}: found {as_plain_text(value)} {what}; need at most {most}; "
                f"call it with smaller tensors, or let thread blocks share the work ({PERSISTENT})"
            )
            limits.append(ir.make_assert(extent <= most, message))
        grid = [x for x in grid if not analyzer.can_prove(written_out(x) > 0)]
    done = ir.find_all(root, tirx.AssertStmt)
    return [x for x in limits if not any(structural_equal(x, y) for y in done)], grid


def _counts(extents: dict[str, Any]) -> list[tuple[str, Any, int]]:
    """List what is counted, and how many there may be."""
    found = [(tag, extents[tag], most) for tag, most in MAX_EXTENTS.items() if tag in extents]
    found = [(f"{_of(tag)} along {tag}", extent, most) for tag, extent, most in found]
    threads = [extent for tag, extent in extents.items() if tag.startswith("threadIdx")]
    return [*found, ("threads in a block", prod(threads), MAX_THREADS)]


def _largest(value: Any) -> int:
    """Return what the type of a value bounds it to: TVM cannot simplify `n - 2 <= 2**31 - 1`."""
    return int(tirx.max_value(ir.dtype_of(value)).value)


def _of(tag: str) -> str:
    return "threads" if tag.startswith("threadIdx") else "thread blocks"


def _is_counted(root: ir.Stmt, extent: Any) -> bool:
    """Tell a number that the host asks for: at least one, where there are tiles."""
    count = extent.value if isinstance(extent, tirx.Cast) else extent  # tensors counted by int64
    if not isinstance(count, ir.Var):
        return False
    binds = ir.find_all(root, tirx.Bind, lambda x: count.same_as(x.var))
    return any(
        call.op.name.endswith("call_packed")
        for bind in binds
        for call in ir.find_all(bind.value, ir.Call)
    )


def rewrite_launch(launch: ir.Stmt, limits: list[tirx.AssertStmt], extents: list[Any]) -> ir.Stmt:
    """Put the checks in front of a launch, and the launch under a condition for each extent."""
    for extent in reversed(extents):
        launch = ir.IfThenElse(extent > 0, launch, None)
    return ir.seq(*limits, launch)


def check_launches(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Check the launches of one host function."""
    if not ir.is_packed(func):
        return func
    plans = {x.stmt: plan_checks(func.body, x) for x in find_launches(func)}
    checked = {stmt: rewrite_launch(stmt, *plan) for stmt, plan in plans.items() if any(plan)}
    if not checked:
        return func
    return func.with_body(ir.replace_nodes(func.body, ir.Evaluate, checked))


CheckLaunches = function_pass("CheckLaunches", check_launches)
