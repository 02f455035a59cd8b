"""Let the thread blocks of a cluster share the loop of a sum, and add what each has summed.

    acc[0:48] = 0
    for part in serial(4, annotations={"tvm_hopper.across_cluster": 1}):
        ... acc[0:48] += ... part ...
    for g in range(12): D[..., g] = f(acc[4 * g : 4 * g + 4])
  ->
    for rank in thread_binding(4, "blockIdx.z"):            a cluster of 1 x 1 x 4 blocks
        acc[0:48] = 0                                       or the initial value if rank is 0
        ... acc[0:48] += ... rank ...
        sums[0:48, thread] = acc[0:48]                      in shared memory
        cluster barrier
        for g in range(3):                                  the block's share of g
            for i in range(4):
                acc[4 * g + i] = sums of rank 0[4 * (3 * rank + g) + i, thread] + of rank 1 + ...
        cluster barrier: arrive
        for g in range(3): D[..., 3 * rank + g] = f(acc[4 * g : 4 * g + 4])
        cluster barrier: wait                               until no block reads this one's memory

Where blocks of several tiles load for one another each part has as many, on the same axis: block
`b` of the cluster computes part `b // 2` of tile `b % 2`, and reads the sums of its tile alone.

Sums are added in the order of the parts, so that each run gives the same bits.  Nothing outlives
the kernel: no memory has to be set to zero or allocated.

Before: the sum is in registers (LowerMma), copies are blocks of operations (LowerCopies).  After:
no `across_cluster` is left.
Not here: waiting for the products and for the stores to shared memory (insert_syncs.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import cluster
from tvm_hopper.plan.across_cluster import AXIS, ClusterSum, plan_across_cluster
from tvm_hopper.plan.notes import RemarkNote, note_kernels
from tvm_hopper.requests.keys import APART
from tvm_hopper.requests.targets import arch_of

from .cluster_sums import gather_sums, shared_out

CLUSTER_AXIS = "clusterCtaIdx.z"


def rewrite_across_cluster(kernel: ir.For, plan: ClusterSum) -> ir.For:
    """Bind the loop to the blocks of a cluster, and put the exchange behind it."""
    rank = ir.Var(plan.loop.loop_var.name, "int32")
    axes = ir.thread_axes(kernel)
    thread = axes["threadIdx.x"]
    accumulator = plan.accumulator
    num_registers, num_threads = int(accumulator.shape[0]), int(thread.extent)
    sums = ir.new_buffer(
        f"{accumulator.name}_sums", (num_registers, num_threads), "float32", "shared.dyn"
    )
    body = ir.substitute(
        plan.loop.body, {plan.loop.loop_var: ir.cast_like(rank, plan.loop.loop_var)}
    )
    publish = ir.opaque_block(
        "publish",
        ir.make_loop(
            "i",
            num_registers,
            lambda i: ir.BufferStore(
                sums, tirx.BufferLoad(accumulator, [i]), [i, ir.as_int32(thread.loop_var)]
            ),
            unroll=True,
        ),
        reads=[ir.full_region(accumulator)],
        writes=[ir.full_region(sums)],
        annotations={APART: 1},
    )
    planned: dict[Any, Any] = {plan.loop: ir.seq(body, publish, cluster.arrive(), cluster.wait())}
    for stmt in plan.start:
        planned[stmt] = ir.replace(stmt, ir.BufferStore, _of_first(rank))
    # registers hold one share at a time: each store has its sums gathered in front of it
    for n, (stmt, share) in enumerate(zip(plan.stores, plan.shares, strict=True)):
        is_held = n > 0 and share.same_registers(plan.shares[n - 1])
        gather = None if is_held else gather_sums(plan, share, sums, rank, thread.loop_var)
        planned[stmt] = ir.seq(gather, shared_out(stmt, share, plan, rank))
    last = plan.stores[-1]
    *before, store = ir.statements(planned[last])
    planned[last] = ir.seq(before, cluster.arrive(), store, cluster.wait())
    kernel = ir.replace_nodes(kernel, ir.Stmt, planned)
    kernel = _allocate(kernel, accumulator, sums)
    if plan.beside is not None:
        return _with_parts(kernel, rank, plan.beside.loop_var, plan.num_blocks)
    for tag in (CLUSTER_AXIS, AXIS):
        kernel = _bind(kernel, rank if tag == AXIS else ir.Var("rank", "int32"), plan, tag)
    return kernel


def _with_parts(kernel: ir.For, part: ir.Var, beside: ir.Var, num_parts: int) -> ir.For:
    """Let each part have blocks for all tiles of the cluster, which is bound later (ShareLoads)."""

    def visit(loop: ir.For, mutator: Any) -> ir.For:
        if not loop.loop_var.same_as(beside):
            return mutator.default_mutate(loop)
        block = ir.Var("block", ir.dtype_of(beside))
        size = int(loop.extent)
        values = {beside: block % size, part: ir.as_int32(block // size)}
        extent = ir.cast_like(size * num_parts, beside)
        body = ir.substitute(loop.body, values)
        return ir.with_body(loop, body, loop_var=block, extent=extent)

    return ir.mutate(kernel, [(ir.For, visit)])


def _of_first(rank: ir.Var) -> Callable[[ir.BufferStore], ir.BufferStore]:
    """Return a change of initial values: the first part begins with them, the others with 0."""

    def change(store: ir.BufferStore) -> ir.BufferStore:
        if ir.is_zero(store.value) or _is_choice(store.value):
            return store
        zero = tirx.const(0, ir.dtype_of(store.buffer))
        value = tirx.if_then_else(rank.equal(0), store.value, zero)
        return ir.BufferStore(store.buffer, value, list(store.indices))

    def _is_choice(value: Any) -> bool:
        return isinstance(value, ir.Call) and ir.uses(value.args[0], rank)

    return change


def _bind(kernel: ir.For, var: ir.Var, plan: ClusterSum, tag: str) -> ir.For:
    axis = tirx.IterVar(None, ir.Var(tag, "int32"), tirx.IterVar.ThreadIndex, tag)
    extent = tirx.IntImm("int32", plan.num_blocks)
    return ir.For(var, 0, extent, ir.ForKind.THREAD_BINDING, kernel, axis)


def _allocate(kernel: ir.For, beside: ir.Var, new: ir.Var) -> ir.For:
    """Allocate a buffer in the block that allocates another one."""
    planned = {
        block: ir.with_block(block, alloc_buffers=[*block.alloc_buffers, new])
        for block in ir.find_all(kernel, ir.SBlock)
        if any(x.same_as(beside) for x in block.alloc_buffers)
    }
    return ir.replace_nodes(kernel, ir.SBlock, planned)


@prim_func_pass(opt_level=0, name="tvm_hopper.ShareSums")
class ShareSums:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Pieces the sums of one function's kernels between the blocks of clusters."""
        notes = {}
        arch = arch_of(func)

        def split(kernel: ir.For) -> ir.For:
            plan = plan_across_cluster(kernel, arch)
            if plan is None:
                return kernel
            notes[ir.number_of(func, kernel)] = [_remark(plan)]
            after = rewrite_across_cluster(kernel, plan)
            assert plan_across_cluster(after, arch) is None, "ShareSums left a loop behind"
            return after

        return note_kernels(ir.map_kernels(func, split), notes)


def _remark(plan: ClusterSum) -> RemarkNote:
    shares = ", ".join(
        f"{share.per_block(plan.num_blocks)} of {int(share.loop.extent)}" for share in plan.shares
    )
    return RemarkNote(
        f"loop {plan.loop.loop_var.name}: {plan.num_blocks} thread blocks of a cluster sum a part "
        "each; their sums are added in the order of the parts, through shared memory, and each "
        f"block stores {shares} pieces of the tile"
    )
