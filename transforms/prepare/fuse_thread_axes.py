"""Fuse the thread axes of a kernel that copies asynchronously into one.

    for tx in thread_binding(32, "threadIdx.x"):
        for ty in thread_binding(4, "threadIdx.y"):
            ... tx ... ty ...
  ->
    for t in thread_binding(128, "threadIdx.x"):
        ... t % 32 ... t // 32 ...

Roles, elections and barriers are about threads by number, as the hardware counts them: x first.
A kernel in which there is nothing but copies needs no thread of its own, and gets one warp.

Before: thread axes are unified.  After: a kernel with copies or operations that runs on threadIdx.x
has no other thread axis.
Not here: giving warps an axis of their own again, where TVM needs it (lower_warp_memory.py); warp
groups that multiply by themselves (lower_wgmma.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.effects import find_effects
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.requests.keys import ASYNC_COPY, ASYNC_OP
from tvm_hopper.transforms.kernel_pass import function_pass

TAGS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")  # as the hardware counts


@dataclass(frozen=True)
class ThreadPlan:
    """The thread axes of a kernel, x first, and how many threads each has."""

    axes: tuple[ir.For, ...]
    extents: tuple[int, ...]

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        return prod(self.extents)


def plan_threads(kernel: ir.For) -> ThreadPlan | None:
    """Return the axes to fuse; None where there is one, or nothing that counts threads."""
    if not ir.find_blocks(kernel, ASYNC_COPY) and not ir.find_blocks(kernel, ASYNC_OP):
        return None
    found = ir.thread_axes(kernel)
    axes = tuple(found[tag] for tag in TAGS if tag in found)
    if "threadIdx.x" not in found or len(axes) == 1:
        return None
    extents = [ir.static_int(axis.extent) for axis in axes]
    for axis, extent in zip(axes, extents, strict=True):
        if extent is None:
            raise cannot_lower(
                f"loop {axis.loop_var.name}, {axis.thread_binding.thread_tag}",
                f"{axis.extent} threads",
                "a static number of threads",
                "split the loop by a constant and bind the inner one",
            )
    _check_warps(kernel, axes[0], int(extents[0] or 0))
    return ThreadPlan(axes, tuple(int(x or 0) for x in extents))


def _check_warps(kernel: ir.For, axis: ir.For, lanes: int) -> None:
    """Refuse buffers of a warp where threadIdx.x is no warp: TVM deals them out along it."""
    for block in ir.find_all(kernel, ir.SBlock):
        for buffer in block.alloc_buffers:
            if buffer.scope() == "warp" and lanes != THREADS_PER_WARP:
                raise cannot_lower(
                    f"buffer {buffer.name}",
                    f"scope 'warp' with {lanes} threads on threadIdx.x, and others next to it",
                    f"{THREADS_PER_WARP} threads on threadIdx.x: the lanes of a warp",
                    f"bind a loop of {THREADS_PER_WARP} to threadIdx.x, warps to threadIdx.y",
                )


def rewrite_threads(kernel: ir.For, plan: ThreadPlan) -> ir.For:
    """Put one axis where the outermost was, and numbers in place of the others' variables."""
    first = plan.axes[0]
    thread = ir.Var("threadIdx_x", ir.dtype_of(first.loop_var))
    name = ir.Var(thread.name, "int32")  # TVM's form: an axis has a separate variable
    bound = tirx.IterVar(None, name, tirx.IterVar.ThreadIndex, "threadIdx.x")
    values: dict[ir.Var, Any] = {}
    below = 1
    for n, (axis, extent) in enumerate(zip(plan.axes, plan.extents, strict=True)):
        number = thread // below if below > 1 else thread
        values[axis.loop_var] = number % extent if n + 1 < len(plan.axes) else number
        below *= extent
    outermost = next(
        loop for loop in ir.find_all(kernel, ir.For) if any(loop.same_as(x) for x in plan.axes)
    )
    notes = {key: value for axis in plan.axes for key, value in axis.annotations.items()}
    tags = {str(axis.thread_binding.thread_tag) for axis in plan.axes}

    def drop(loop: ir.For, mutator: Any) -> ir.Stmt:
        new = mutator.default_mutate(loop)
        if loop.thread_binding is None or str(loop.thread_binding.thread_tag) not in tags:
            return new
        body = ir.substitute(new.body, {loop.loop_var: values.get(loop.loop_var, thread)})
        if not loop.same_as(outermost):
            return body
        count = tirx.IntImm(ir.dtype_of(thread), plan.num_threads)
        return ir.For(
            thread,
            tirx.IntImm(ir.dtype_of(thread), 0),
            count,
            ir.ForKind.THREAD_BINDING,
            body,
            thread_binding=bound,
            annotations=notes,
        )

    return ir.mutate(kernel, [(ir.For, drop)])


def copies_alone(kernel: ir.For) -> bool:
    """Tell a kernel without threads in which every store is a copy that hardware makes."""
    if any(tag in TAGS for tag in ir.thread_axes(kernel)):
        return False
    asynchronous = [*ir.find_blocks(kernel, ASYNC_COPY), *ir.find_blocks(kernel, ASYNC_OP)]
    rest = ir.replace_nodes(
        kernel, ir.SBlock, {x: ir.with_block(x, body=ir.seq()) for x in asynchronous}
    )
    return bool(asynchronous) and not any(x.writes for x in find_effects(rest))


def bind_warp(loop: ir.For) -> ir.For:
    """Bind one warp around the statements inside a kernel's block axes."""
    if isinstance(loop.body, ir.For) and loop.body.kind == ir.ForKind.THREAD_BINDING:
        return ir.with_body(loop, bind_warp(loop.body))
    thread, bound = ir.Var("threadIdx_x", "int32"), ir.Var("threadIdx_x", "int32")
    axis = tirx.IterVar(None, bound, tirx.IterVar.ThreadIndex, "threadIdx.x")
    zero, count = (tirx.IntImm("int32", x) for x in (0, THREADS_PER_WARP))
    kind = ir.ForKind.THREAD_BINDING
    return ir.with_body(loop, ir.For(thread, zero, count, kind, loop.body, thread_binding=axis))


def fuse_threads(kernel: ir.For) -> ir.For:
    """Fuse the thread axes of a kernel, if it counts threads."""
    if copies_alone(kernel):
        return bind_warp(kernel)
    plan = plan_threads(kernel)
    return kernel if plan is None else rewrite_threads(kernel, plan)


def _fuse_threads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Fuse the thread axes of one function's kernels."""

    def fuse(kernel: ir.For) -> ir.For:
        after = fuse_threads(kernel)
        assert plan_threads(after) is None, "FuseThreadAxes left an axis after"
        return after

    return ir.map_kernels(func, fuse)


FuseThreadAxes = function_pass("FuseThreadAxes", _fuse_threads)
