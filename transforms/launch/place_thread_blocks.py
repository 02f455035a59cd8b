"""Place a kernel's thread blocks on SMs: how many share one, and which begin together.

    for bx in thread_binding(43691, "blockIdx.x", annotations={
        "tvm_hopper.blocks_per_sm": 2, "tvm_hopper.launched_together": 4
    }):
        for tx in thread_binding(1024, "threadIdx.x"): ...
  ->
    for rank in thread_binding(4, "clusterCtaIdx.x"):
        for bx in thread_binding(43692, "blockIdx.x"):
            for tx in thread_binding(1024, "threadIdx.x"):
                if bx < 43691:
                    attr "tirx.launch_bounds_min_blocks_per_sm" = 2: ...

The assembler keeps computed values, a row in float32 next to its 16 bits, as long as there are
registers. With 90 for each of 256 threads two blocks share an SM, and while they wait for a barrier
nothing is in flight. Held to 64 registers it computes the values again.

The blocks of a cluster begin at the same time, so that what they load side by side is one long
piece of memory: 64 KiB instead of 16 KiB make a kernel of two reads and a write up to 0.4% faster
on an H200 (docs/memory_bound.md).

Before: thread axes are final.  After: CUDA's `__launch_bounds__` has both numbers, and no
`launched_together` is left.  A chip without clusters launches each block by itself: the kernel
computes the same.
Not here: thread blocks that exchange something (split_rows_across_cluster.py, multicast_loads.py).
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.requests.keys import BLOCKS_PER_SM, LAUNCHED_TOGETHER
from tvm_hopper.requests.targets import arch_of
from tvm_hopper.transforms.common.explain_notes import Note, RemarkNote
from tvm_hopper.transforms.kernel_pass import function_pass, kernel_step, map_noted

BOUND = "tirx.launch_bounds_min_blocks_per_sm"
AXIS, CLUSTER_AXIS = "blockIdx.x", "clusterCtaIdx.x"


def plan_limit(kernel: ir.For) -> int | None:
    """Return how many thread blocks share an SM; None if the kernel does not say."""
    count = ir.thread_axes(kernel)["blockIdx.x"].annotations.get(BLOCKS_PER_SM)
    if count is None:
        return None
    axes = ir.thread_axes(kernel)
    threads = prod(int(axes[x].extent) for x in axes if x.startswith("threadIdx"))
    if int(count) * threads > SM_90A.max_threads_per_sm:
        raise cannot_lower(
            f"loop {axes['blockIdx.x'].loop_var.name}, {BLOCKS_PER_SM}",
            f"{count} thread blocks of {threads} threads",
            f"at most {SM_90A.max_threads_per_sm} threads of an SM",
        )
    return int(count)


def rewrite_limit(kernel: ir.For, count: int) -> Any:
    """Bound the registers of a kernel."""
    block = ir.find_all(kernel, ir.SBlock)[0]
    bound = tirx.AttrStmt(tirx.IntImm("int32", 0), BOUND, tirx.IntImm("int32", count), block.body)
    kernel = ir.replace_nodes(kernel, ir.SBlock, {block: ir.with_block(block, body=bound)})
    return ir.without_annotations(kernel, BLOCKS_PER_SM)


def plan_launch_clusters(kernel: ir.For) -> int | None:
    """Return how many thread blocks begin together; None if the kernel does not say."""
    axes = ir.thread_axes(kernel)
    count = axes[AXIS].annotations.get(LAUNCHED_TOGETHER) if AXIS in axes else None
    if count is None:
        return None
    taken = [x for x in axes if x.startswith("clusterCtaIdx")]
    if taken:
        where = f"loop {axes[AXIS].loop_var.name}, {LAUNCHED_TOGETHER} = {count}"
        found = f"clusters of {axes[taken[0]].extent} thread blocks that work together"
        raise cannot_lower(where, found, "thread blocks that share nothing", "leave it out")
    return int(count)


def rewrite_launch_clusters(kernel: ir.For, count: int, has_clusters: bool = True) -> ir.For:
    """Put a kernel's thread blocks into clusters, and fill up the last one."""
    axis = ir.thread_axes(kernel)[AXIS]
    number, extent = axis.loop_var, axis.extent
    whole = (extent + (count - 1)) // count * count if has_clusters else extent
    is_whole = not has_clusters or ir.is_zero(ir.simplify(extent % count))

    def plain(loop: ir.For, mutator: Any) -> ir.For:
        loop = mutator.default_mutate(loop)
        if not loop.loop_var.same_as(number):
            return loop
        rest = {k: v for k, v in loop.annotations.items() if k != LAUNCHED_TOGETHER}
        made = ir.with_body(loop, loop.body, annotations=rest)
        filled = ir.cast_like(ir.simplify(whole), number)
        return ir.For(
            made.loop_var, made.min, filled, made.kind, made.body, made.thread_binding, rest
        )

    if not is_whole:
        block = ir.find_all(kernel, ir.SBlock)[0]
        body = ir.IfThenElse(number < extent, block.body, None)
        kernel = ir.replace_nodes(kernel, ir.SBlock, {block: ir.with_block(block, body=body)})
    kernel = ir.mutate(kernel, [(ir.For, plain)])
    if not has_clusters:
        return kernel
    rank = ir.Var("rank", "int32")
    tag = tirx.IterVar(None, ir.Var(CLUSTER_AXIS, "int32"), tirx.IterVar.ThreadIndex, CLUSTER_AXIS)
    zero, size = (tirx.IntImm("int32", x) for x in (0, count))
    return ir.For(rank, zero, size, ir.ForKind.THREAD_BINDING, kernel, tag)


def form_clusters(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Put the thread blocks of one function's kernels into clusters."""

    def together(kernel: ir.For, notes: list[Note]) -> ir.For:
        if (count := plan_launch_clusters(kernel)) is None:
            return kernel
        has_clusters = arch_of(func).has_clusters
        after = rewrite_launch_clusters(kernel, count, has_clusters)
        assert plan_launch_clusters(after) is None, "form_clusters left a request"
        if has_clusters:
            text = f"{count} neighbouring thread blocks begin together"
            notes += [RemarkNote(text)]
        return after

    return map_noted(func, together)


limit_registers = kernel_step(
    plan_limit, rewrite_limit, when=lambda kernel: AXIS in ir.thread_axes(kernel)
)
PlaceThreadBlocks = function_pass("PlaceThreadBlocks", limit_registers, form_clusters)
