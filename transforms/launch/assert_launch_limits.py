"""Check on the host, at each call, that the launch is within the limits of the hardware.

    call_ffi_kernel("main_kernel", ..., (m + 63) // 64, 9, 256)       along blockIdx.y, x, threads
  ->
    assert (m + 63) // 64 <= 65535, "main_kernel: found (m + 63) // 64 thread blocks along ..."
    call_ffi_kernel("main_kernel", ..., (m + 63) // 64, 9, 256)

The driver would refuse it without a word about what is too large.

Before: the host function is packed.  After: extents that symbols decide are checked, unless their
type or the conditions around the launch bound them.
Not here: static extents, which the build refuses (`static_check.room`).
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


def plan_limits(root: ir.Stmt, launch: KernelLaunch) -> list[tirx.AssertStmt]:
    """Return the checks that a launch needs before it and does not have."""
    counts = [x for x in _counts(launch.extents) if ir.static_int(x[1]) is None]
    if not counts:
        return []
    checks = []
    with known_around(root, launch) as (analyzer, written_out):
        for what, extent, most in counts:
            value = written_out(extent)
            if analyzer.can_prove(value <= most):
                continue
            message = (
                f"{launch.kernel}: found {as_plain_text(value)} {what}; need at most {most}; "
                f"call it with smaller tensors, or let thread blocks share the work ({PERSISTENT})"
            )
            checks.append(ir.make_assert(extent <= most, message))
    done = ir.find_all(root, tirx.AssertStmt)
    return [x for x in checks if not any(structural_equal(x, y) for y in done)]


def _counts(extents: dict[str, Any]) -> list[tuple[str, Any, int]]:
    """List what is counted, and how many there may be."""
    found = [(tag, extents[tag], most) for tag, most in MAX_EXTENTS.items() if tag in extents]
    found = [(f"{_of(tag)} along {tag}", extent, most) for tag, extent, most in found]
    threads = [extent for tag, extent in extents.items() if tag.startswith("threadIdx")]
    return [*found, ("threads in a block", prod(threads), MAX_THREADS)]


def _of(tag: str) -> str:
    return "threads" if tag.startswith("threadIdx") else "thread blocks"


def _assert_limits(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Check the launches of one host function."""
    if not ir.is_packed(func):
        return func
    plans = {x.stmt: plan_limits(func.body, x) for x in find_launches(func)}
    checked = {stmt: ir.seq(*plan, stmt) for stmt, plan in plans.items() if plan}
    body = ir.replace_nodes(func.body, ir.Evaluate, checked) if checked else func.body
    return func.with_body(body)


AssertLaunchLimits = function_pass("AssertLaunchLimits", _assert_limits)
