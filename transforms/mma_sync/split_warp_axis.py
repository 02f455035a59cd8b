"""Split off a thread axis of warps, for buffers of scope "warp".

    attr threadIdx.x = t, 160:
        fragment = alloc((256,), "float16", "warp")
        ... fragment[t % 32 * 8] ... t // 32 ...
  ->
    attr threadIdx.y = w, 5:
        attr threadIdx.x = lane, 32:
            fragment = alloc((256,), "float16", "warp")
            ... fragment[(w * 32 + lane) % 32 * 8] ... (w * 32 + lane) // 32 ...

TVM deals the elements of such a buffer out to the lanes of a warp, which it takes to be all of
threadIdx.x. The hardware numbers the threads of a block along x first, so that no thread changes
its number.

Before: our kernels run on threadIdx.x alone (FuseThreadAxes).  After: with buffers of scope "warp"
threadIdx.x has 32 threads.
Not here: the simpler indices (TVM's StmtSimplify); the registers (TVM's LowerWarpMemory).
"""

from __future__ import annotations

from typing import Any

from tvm import ir as tvm_ir
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.transforms.kernel_pass import planned_pass


def plan_warps(func: tirx.PrimFunc) -> tuple[Any, ...]:
    """Return the thread axes of our kernels that hold buffers of a warp and are longer than one."""
    return tuple(
        axis
        for kernel in filter(ir.is_ours, ir.outermost_thread_extents(func.body))
        for axis in ir.find_all(kernel, tirx.AttrStmt, _is_thread_axis)
        if _num_warps(axis) > 1
        and ir.find_all(axis, tirx.AllocBuffer, lambda x: x.buffer.scope() == "warp")
    )


def _num_warps(axis: Any) -> int:
    """Return how many whole warps an axis has, 0 where it is no number of them."""
    threads = ir.static_int(axis.value)
    return 0 if threads is None or threads % THREADS_PER_WARP else threads // THREADS_PER_WARP


def _is_thread_axis(attr: tirx.AttrStmt) -> bool:
    return attr.attr_key == "thread_extent" and str(attr.node.thread_tag) == "threadIdx.x"


def rewrite_warps(func: tirx.PrimFunc, plan: tuple[Any, ...]) -> tirx.PrimFunc:
    """Replace each axis by two."""
    return func.with_body(
        ir.replace_nodes(func.body, tirx.AttrStmt, {axis: _split(axis) for axis in plan})
    )


def _split(axis: Any) -> ir.Stmt:
    thread = axis.node.var
    dtype = ir.dtype_of(thread)
    lane = _axis("x", dtype, THREADS_PER_WARP)
    warp = _axis("y", dtype, _num_warps(axis))
    body = ir.substitute(axis.body, {thread: warp.var * THREADS_PER_WARP + lane.var})
    for one in (lane, warp):
        body = tirx.AttrStmt(one, "thread_extent", one.dom.extent, body)
    return body


def _axis(name: str, dtype: str, extent: int) -> tirx.IterVar:
    zero, extent = tirx.IntImm(dtype, 0), tirx.IntImm(dtype, extent)
    dom = tvm_ir.Range.from_min_extent(zero, extent)
    var = ir.Var(f"threadIdx_{name}", dtype)
    return tirx.IterVar(dom, var, tirx.IterVar.ThreadIndex, f"threadIdx.{name}")


SplitWarpAxis = planned_pass("SplitWarpAxis", plan_warps, rewrite_warps)
