"""Let neighbouring thread blocks begin together, as a cluster that shares nothing else.

    for bx in thread_binding(7, "blockIdx.x", annotations={"tvm_hopper.begin_together": 2}):
        for tx in thread_binding(128, "threadIdx.x"):
            with sblock("kernel"):
                ...  of bx
  ->
    for number in thread_binding(2, "blockIdx.z"):
        for rank in thread_binding(2, "clusterCtaIdx.z"):
            for group in thread_binding(4, "blockIdx.x"):
                for tx in thread_binding(128, "threadIdx.x"):
                    with sblock("kernel"):
                        if group * 2 + number < 7:
                            ...  of group * 2 + number

Neighbours that begin at once load neighbouring memory at once: row reductions of 2 GiB take 0.2 to
0.5% less time on an H200 (docs/memory_bound.md).  The condition is left out where the number of
thread blocks divides.  A chip without clusters starts them as ever.

Before: the kernel is finished, nobody asks for its axes any more.  After: no such request is left.
Not here: kernels of clusters, or with thread blocks along blockIdx.z.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.plan.notes import RemarkNote, note_kernels
from tvm_hopper.requests.keys import BEGIN_TOGETHER
from tvm_hopper.requests.targets import arch_of

GRID, AXIS, CLUSTER_AXIS = "blockIdx.x", "blockIdx.z", "clusterCtaIdx.z"


def plan_together(kernel: ir.For) -> int | None:
    """Return how many thread blocks begin together; None if the kernel does not say."""
    axes = ir.thread_axes(kernel)
    count = axes[GRID].annotations.get(BEGIN_TOGETHER) if GRID in axes else None
    if count is None:
        return None
    where = f"loop {axes[GRID].loop_var.name}, {BEGIN_TOGETHER} = {count}"
    if AXIS in axes:
        found = f"thread blocks along {AXIS}"
        raise cannot_lower(where, found, f"those along {GRID} alone", "leave the annotation out")
    if ir.find_all(axes[GRID].extent, ir.Call):
        found = "a number of thread blocks that the host counts for its device"
        raise cannot_lower(where, found, "one of the program's", "leave the annotation out")
    return int(count)


def without_request(kernel: ir.For) -> Any:
    """Take the request off a kernel."""

    def plain(loop: ir.For) -> ir.For:
        if BEGIN_TOGETHER not in loop.annotations:
            return loop
        rest = {k: v for k, v in loop.annotations.items() if k != BEGIN_TOGETHER}
        return ir.with_body(loop, loop.body, annotations=rest)

    return ir.replace(kernel, ir.For, plain)


def rewrite_together(kernel: ir.For, count: int) -> ir.For:
    """Make clusters of neighbours."""
    grid = ir.thread_axes(kernel)[GRID]
    old, extent = grid.loop_var, grid.extent
    group, number = (ir.Var(x, ir.dtype_of(old)) for x in ("group", "number"))
    size = ir.cast_like(count, old)
    place = group * size + number
    groups = ir.simplify(tirx.floordiv(extent + size - 1, size))
    body = ir.substitute(grid.body, {old: place})
    if not ir.is_const(ir.simplify(tirx.floormod(extent, size)), 0):
        block = ir.find_all(body, ir.SBlock)[0]
        guarded = ir.with_block(block, body=_behind(block.body, place < extent))
        body = ir.replace_nodes(body, ir.SBlock, {block: guarded})
    new = ir.For(group, grid.min, groups, grid.kind, body, grid.thread_binding, grid.annotations)
    kernel = ir.replace_nodes(kernel, ir.For, {grid: new})
    kernel = _bind(kernel, ir.Var("rank", "int32"), count, CLUSTER_AXIS)
    return _bind(kernel, number, count, AXIS)


def _behind(body: ir.Stmt, condition: Any) -> ir.Stmt:
    """Put a kernel's work behind a condition, inside of its bounds and marks."""
    if isinstance(body, tirx.AttrStmt):
        return tirx.AttrStmt(body.node, body.attr_key, body.value, _behind(body.body, condition))
    return ir.IfThenElse(condition, body, None)


def _bind(kernel: ir.For, var: ir.Var, extent: int, tag: str) -> ir.For:
    axis = tirx.IterVar(None, ir.Var(tag, ir.dtype_of(var)), tirx.IterVar.ThreadIndex, tag)
    low, high = ir.cast_like(0, var), ir.cast_like(extent, var)
    return ir.For(var, low, high, ir.ForKind.THREAD_BINDING, kernel, axis)


@prim_func_pass(opt_level=0, name="tvm_hopper.BeginTogether")
class BeginTogether:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Group the thread blocks of one function's kernels."""
        arch, notes = arch_of(func), {}

        def begin(kernel: ir.For) -> Any:
            if (count := plan_together(kernel)) is None:
                return kernel
            after = without_request(kernel)
            if arch.has_clusters:
                text = f"{count} neighbouring thread blocks at a time begin together"
                notes[ir.number_of(func, kernel)] = [RemarkNote(text)]
                after = rewrite_together(after, count)
            assert plan_together(after) is None, "BeginTogether left a request"
            return after

        return note_kernels(ir.map_kernels(func, begin), notes)
