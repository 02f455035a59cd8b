"""Split the rows of a kernel over the thread blocks of clusters.

    for bx in thread_binding(1024, "blockIdx.x", annotations={"tvm_hopper.row_cluster": 8}):
        for tz in thread_binding(8, "threadIdx.z"):
            for tx in thread_binding(512, "threadIdx.x"): ...
  ->
    for tz in thread_binding(8, "blockIdx.z"):
        for rank in thread_binding(8, "clusterCtaIdx.z"):
            for bx in thread_binding(1024, "blockIdx.x"):
                for tx in thread_binding(512, "threadIdx.x"): ...

A schedule has no word for thread blocks that reduce together: TVM knows reductions across threads.
So the parts of a row are numbered by a thread axis until here.

Before: thread axes are unified, reductions across threads are TVM's calls.  After: no `row_cluster`
is left; a reduction over both axes is one across the cluster.  On a chip without clusters each
thread block has all parts of its rows, in turn (serial_row_parts.py), which `explain` reports.
Not here: what the thread blocks send each other (reduce_across_threads.py).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.access import step_of
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import Arch
from tvm_hopper.requests.fallbacks import Fallback, report
from tvm_hopper.requests.keys import ROW_CLUSTER
from tvm_hopper.requests.targets import arch_of
from tvm_hopper.transforms.common.explain_notes import FallbackNote, Note
from tvm_hopper.transforms.kernel_pass import map_noted

from .serial_row_parts import rewrite_serial_row_parts

PART_AXIS, AXIS, CLUSTER_AXIS = "threadIdx.z", "blockIdx.z", "clusterCtaIdx.z"


def plan_row_split(kernel: ir.For) -> ir.For | None:
    """Return the loop over parts of a row, if thread blocks of a cluster are to share rows."""
    axes = ir.thread_axes(kernel)
    count = axes["blockIdx.x"].annotations.get(ROW_CLUSTER) if "blockIdx.x" in axes else None
    if count is None:
        return None
    where = f"loop {axes['blockIdx.x'].loop_var.name}, {ROW_CLUSTER} = {count}"
    loop = axes.get(PART_AXIS)
    if loop is None or not ir.is_const(loop.extent, int(count)):
        found = "none" if loop is None else f"one of {loop.extent}"
        raise cannot_lower(where, f"a loop on {PART_AXIS}: {found}", f"one of {count}, over parts")
    if AXIS in axes:
        raise cannot_lower(where, f"another loop on {AXIS}", "a separate axis")
    return loop


def rewrite_row_split(kernel: ir.For, part: ir.For) -> ir.For:
    """Let the thread blocks of a cluster count the parts of a row."""

    def visit(loop: ir.For, mutator: Any) -> Any:
        loop = mutator.default_mutate(loop)
        return loop.body if loop.loop_var.same_as(part.loop_var) else loop

    kernel = own_tiles(ir.without_annotations(kernel, ROW_CLUSTER), part)
    kernel = ir.mutate(kernel, [(ir.For, visit)])
    # TVM's CUDA text counts the threads of __launch_bounds__ by variables of that name, too
    number = ir.Var("part", ir.dtype_of(part.loop_var))
    kernel = ir.substitute(kernel, {part.loop_var: number})
    kernel = _bind(kernel, ir.Var("rank", "int32"), part.extent, CLUSTER_AXIS)
    return _bind(kernel, number, part.extent, AXIS)


def _bind(kernel: ir.For, var: ir.Var, extent: Any, tag: str) -> ir.For:
    axis = tirx.IterVar(None, ir.Var(tag, ir.dtype_of(var)), tirx.IterVar.ThreadIndex, tag)
    return ir.For(
        var,
        ir.cast_like(0, var),
        ir.cast_like(extent, var),
        ir.ForKind.THREAD_BINDING,
        kernel,
        axis,
    )


def split_rows_across_cluster(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Spread the rows of one function's kernels."""
    arch = arch_of(func)

    def spread(kernel: ir.For, notes: list[Note]) -> ir.For:
        if (part := plan_row_split(kernel)) is None:
            return kernel
        if arch.has_clusters:
            after = rewrite_row_split(kernel, part)
        else:
            _check_turns(kernel, part, arch)
            slow = report(func, [_in_turn(part, arch)])
            notes += [FallbackNote(x) for x in slow]
            after = rewrite_serial_row_parts(ir.without_annotations(kernel, ROW_CLUSTER), part)
        assert plan_row_split(after) is None, "split_rows_across_cluster left a loop over parts"
        return after

    return map_noted(func, spread)


def _check_turns(kernel: ir.For, part: ir.For, arch: Arch) -> None:
    """Refuse parts of rows that a loop takes one after another: their sums stay in registers."""
    for loop in ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.SERIAL):
        scopes = ir.find_all(loop, tirx.AttrStmt, lambda x: x.attr_key == "reduce_scope")
        if scopes and not ir.is_const(loop.extent, 1):
            raise cannot_lower(
                f"loop {loop.loop_var.name}",
                f"rows of {part.extent} thread blocks of a cluster in it, for {arch.name}",
                "a processor with clusters",
                "schedule inside of `with target:`, or give hs.RowReductionConfig(cluster=1)",
            )


def _in_turn(part: ir.For, arch: Arch) -> Fallback:
    return Fallback(
        f"rows of {part.extent} thread blocks",
        f"each by one thread block, a part after another: {arch.name} has no clusters",
        "a configuration for it",
        "schedule inside of `with target:`, or give hs.RowReductionConfig(cluster=1)",
    )


# -- shrink shared arrays to one thread block's part of a row that a cluster shares
#     tile = alloc_buffer((1, 8192), "float16", scope="shared")        part runs over 8
#     tile[0, part * 1024 + i] = X[bx, part * 1024 + i]
#   ->
#     tile = alloc_buffer((1, 1024), "float16", scope="shared")
#     tile[0, i] = X[bx, part * 1024 + i]
#
# Parts are numbered by a thread axis in the schedule, and TVM takes shared arrays for those of all
# threads.


def own_tiles(kernel: ir.For, part: ir.For) -> ir.For:
    """Cut the shared arrays of a kernel to what one part of a row has of them."""
    blocks = ir.find_all(kernel, ir.SBlock)
    for old in (x for block in blocks for x in block.alloc_buffers):
        if str(old.scope()).startswith("shared"):
            kernel = _cut(kernel, old, part)
    return kernel


def _cut(kernel: ir.For, old: ir.Var, part: ir.For) -> Any:
    """Cut one array along the dimension that is indexed by parts."""
    touched = ir.accesses(kernel, old)
    steps = {tuple(step_of(i, part.loop_var) for i in x.indices) for x in touched}
    found = next(iter(steps)) if len(steps) == 1 else ()
    dims = [n for n, step in enumerate(found) if step]
    if len(dims) != 1 or found[dims[0]] is None:
        raise cannot_lower(
            f"buffer {old.name}",
            "an array in shared memory that thread blocks of a cluster do not share",
            "an index of one dimension that is a number of elements for each part of a row",
            "split the loops over it as those of the row",
        )
    (dim,), (size,) = dims, [int(found[dims[0]] or 0)]
    shape = [size if n == dim else x for n, x in enumerate(old.shape)]
    alignment = int(old.ty.data_alignment)
    new = ir.new_buffer(old.name, tuple(shape), ir.dtype_of(old), str(old.scope()), alignment)

    def first(value: Any) -> Any:
        return ir.simplify(ir.substitute(value, {part.loop_var: ir.cast_like(0, part.loop_var)}))

    def index(indices: list[Any]) -> list[Any]:
        return [first(x) if n == dim else x for n, x in enumerate(indices)]

    def region(ranges: list[Any]) -> list[Any]:
        return [
            _within(first(x.min), x.extent, size) if n == dim else x for n, x in enumerate(ranges)
        ]

    return ir.reindex(ir.reallocate(kernel, old, new), old, new, index, region)


def _within(start: Any, extent: Any, size: int) -> Any:
    """Return a range that is no longer than an array."""
    most = ir.static_int(extent)
    kept = extent if most is not None and most < size else ir.cast_like(size, start)
    return tvm.ir.Range.from_min_extent(start, kept)
