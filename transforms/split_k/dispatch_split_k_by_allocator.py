"""Choose at each call how split-K sums are added: in a workspace if the caller brings an allocator.

    kernel:
        for part in serial(12, annotations={"tvm_hopper.across_cluster": 3}):
            for k in serial(5): ... 12 * k + part ...
  ->
    if not isnullptr(TVMFFIEnvGetDLPackManagedTensorAllocator()):
        kernel, with annotations={"tvm_hopper.across_cluster": 2}
    else:
        kernel:
            for part in serial(6, annotations={"tvm_hopper.across_cluster": 1}):
                for k in serial(10): ... 6 * k + part ...

Parts in a workspace fill the chip, but only the caller's allocator (PyTorch's) knows streams and
graphs; TVM's pool belongs to a thread.  Blocks of a cluster need no memory.  What a call comes with
is known on the host, at each call.

Shares of all tiles' steps (`tvm_hopper.stream`) hand sums on through memory, too: without an
allocator each block computes whole tiles, which the request is taken away for.

A cluster has fewer blocks than a workspace may have parts, so that each sums those steps of several
parts; their number divides the other one, and every block has as many steps.

Before: kernels are not numbered yet.  After: each sum has one mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import MAX_CLUSTER
from tvm_hopper.facts.devices import Chip
from tvm_hopper.requests.keys import (
    ACROSS_CLUSTER,
    BY_CALLER,
    BY_CLUSTER,
    BY_KERNELS,
    BY_TURNS,
    IN_TURNS,
    STREAM,
    STREAM_ALWAYS,
    STREAM_BY_CALLER,
)
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.transforms.common.multicast_groups import find_cluster_axis

# What is requested, and what a call with an allocator gets.
MODE_WITH_ALLOCATOR = {BY_CALLER: BY_KERNELS, BY_TURNS: IN_TURNS}


@dataclass(frozen=True)
class SplitKDispatch:
    """A loop over parts of a sum, and how many blocks of a cluster share it otherwise.

    - `loop`: over the parts.
    - `steps`: the loop right inside of it; None where a cluster has a block for each part.
    - `blocks`: of a cluster.
    """

    loop: ir.For
    steps: ir.For | None
    blocks: int

    @property
    def parts_of_one(self) -> int:
        """Parts whose steps a block of a cluster sums."""
        return int(self.loop.extent) // self.blocks


def plan_split_k_dispatch(kernel: ir.For, chip: Chip) -> SplitKDispatch | None:
    """Choose the cluster that calls without an allocator get; None if that is not requested."""
    loops = ir.find_all(kernel, ir.For, lambda x: ACROSS_CLUSTER in x.annotations)
    asked = [x for x in loops if int(x.annotations[ACROSS_CLUSTER]) in MODE_WITH_ALLOCATOR]
    if not asked:
        return None
    loop = asked[0]
    where = f"loop {loop.loop_var.name}, {ACROSS_CLUSTER}"
    count = ir.static_int(loop.extent)
    beside = find_cluster_axis(ir.thread_axes(kernel).values())
    size = 1 if beside is None else int(beside.extent)
    blocks = None if count is None else cluster_blocks(count, _tiles(kernel), chip, size)
    if count is None or blocks is None:
        raise cannot_lower(
            where,
            f"{loop.extent} parts",
            f"a multiple of a number from 2 to {MAX_CLUSTER // size}, the thread "
            "blocks of a cluster: calls without an allocator have no workspace",
            "take another number of parts, or one of the two ways",
        )
    if blocks == count:
        return SplitKDispatch(loop, None, blocks)
    steps = ir.statements(loop.body)[0]
    plain = isinstance(steps, ir.For) and steps.kind == ir.ForKind.SERIAL
    if len(ir.statements(loop.body)) != 1 or not plain or not ir.is_const(steps.min, 0):
        raise cannot_lower(
            where,
            "no loop of steps right inside of it",
            "a serial loop from 0 alone: blocks of a cluster sum the steps of several parts",
            "reorder it there, or take as many parts as a cluster has thread blocks",
        )
    return SplitKDispatch(loop, steps, blocks)


def cluster_blocks(parts: int, tiles: int | None, chip: Chip, beside: int = 1) -> int | None:
    """Return how many blocks of a cluster share the steps of so many parts, None if none can.

    Of those that divide the parts, the number that takes the fewest steps; the largest
    where the number of tiles is not known. A cluster may have blocks of several tiles for each.
    """
    able = [x for x in range(2, MAX_CLUSTER // beside + 1) if parts % x == 0]
    if tiles is None:
        return max(able, default=None)
    groups = -(-tiles // beside)
    return min(able, key=lambda x: (-(-groups // chip.clusters(x * beside)) / x, x), default=None)


def _tiles(kernel: ir.For) -> int | None:
    axes = ir.thread_axes(kernel)
    extents = [ir.static_int(x.extent) for tag, x in axes.items() if tag.startswith("blockIdx")]
    known = [x for x in extents if x is not None]
    return prod(known) if len(known) == len(extents) else None


def rewrite_split_k_dispatch(kernel: ir.For, plan: SplitKDispatch) -> ir.Stmt:
    """Build both kernels under the condition."""
    way = MODE_WITH_ALLOCATOR[int(plan.loop.annotations[ACROSS_CLUSTER])]
    notes = {**plan.loop.annotations, ACROSS_CLUSTER: way}
    wide = ir.with_body(plan.loop, plan.loop.body, annotations=notes)
    by_kernels = ir.replace_nodes(kernel, ir.For, {plan.loop: wide})
    by_cluster = ir.replace_nodes(kernel, ir.For, {plan.loop: _in_cluster(plan)})
    return ir.IfThenElse(ir.has_allocator(), by_kernels, ir.fresh_variables(by_cluster))


def rewrite_stream(kernel: ir.For) -> ir.Stmt | None:
    """Build a stream-K kernel and one of whole tiles, chosen by the allocator, if requested."""
    axis = ir.thread_axes(kernel).get("blockIdx.x")
    if axis is None or int(axis.annotations.get(STREAM, 0)) != STREAM_BY_CALLER:
        return None
    rest = {key: value for key, value in axis.annotations.items() if key != STREAM}

    def noted(notes: dict[str, Any]) -> ir.For:
        new = ir.with_body(axis, axis.body, annotations=notes)
        return ir.replace_nodes(kernel, ir.For, {axis: new})

    whole = ir.fresh_variables(noted(rest))
    return ir.IfThenElse(ir.has_allocator(), noted({**rest, STREAM: STREAM_ALWAYS}), whole)


def _in_cluster(plan: SplitKDispatch) -> ir.For:
    """Return the loop over the blocks of a cluster, with the steps of several parts in each."""
    loop, steps, count = plan.loop, plan.steps, plan.parts_of_one
    notes = {**loop.annotations, ACROSS_CLUSTER: BY_CLUSTER}
    if steps is None:
        return ir.with_body(loop, loop.body, annotations=notes)
    rank = ir.Var(loop.loop_var.name, ir.dtype_of(loop.loop_var))
    step = ir.Var(steps.loop_var.name, ir.dtype_of(steps.loop_var))
    part = ir.cast_like(step % count, rank) * plan.blocks + rank
    body = ir.substitute(steps.body, {steps.loop_var: step // count, loop.loop_var: part})

    def plain(node: Any, mutator: Any) -> Any:  # 12 * (step // 2) + 6 * (step % 2) is 6 * step
        return ir.simplify(node) if ir.uses(node, step) else node

    body = ir.mutate(body, [(tirx.Add, plain)])
    inner = ir.with_body(steps, body, loop_var=step, extent=ir.simplify(steps.extent * count))
    extent = ir.cast_like(plan.blocks, rank)
    return ir.with_body(loop, inner, loop_var=rank, extent=extent, annotations=notes)


def dispatch_split_k_by_allocator(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Branch around those kernels of one function whose callers decide."""
    target = func.attrs.get("target", None) if func.attrs else None
    chip = chip_of_target(target)

    def branch(kernel: ir.For) -> ir.Stmt:
        plan = plan_split_k_dispatch(kernel, chip)
        if plan is None:
            return rewrite_stream(kernel) or kernel
        after = rewrite_split_k_dispatch(kernel, plan)
        assert all(
            plan_split_k_dispatch(x, chip) is None for x in (after.then_case, after.else_case)
        ), "dispatch_split_k_by_allocator left a loop behind"
        return after

    return ir.map_kernels(func, branch)
