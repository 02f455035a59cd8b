"""Split-K: let thread blocks share the loop of a sum, and add their partial sums.

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

If blocks of several tiles load for one another, each part has as many, on the same axis. Block `b`
of the cluster computes part `b // 2` of tile `b % 2`, and reads the sums of its tile alone.

Loops whose iterations meet in atomic reductions alone go to the grid before
(bind_reduction_loop_to_grid.py).

Sums are added in the order of the parts, so that each run gives the same bits.  Nothing outlives
the kernel: no memory has to be set to zero or allocated.

Before: the sum is in registers (LowerWgmma), copies are blocks of operations
(LowerAsyncCopies).  After: no `across_cluster` is left. Not here: waiting for the products and
for the stores to shared memory (insert_syncs.py).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import address, cluster
from tvm_hopper.requests.keys import BY_CLUSTER, BY_KERNELS, DISJOINT_WRITES, IN_TURNS
from tvm_hopper.requests.targets import arch_of
from tvm_hopper.transforms.common.explain_notes import RemarkNote, note_kernels, renumber_notes
from tvm_hopper.transforms.common.multicast_groups import AXIS
from tvm_hopper.transforms.kernel_pass import function_pass

from .bind_reduction_loop_to_grid import bind_reduction_loop_to_grid
from .epilogue_shares import allocate, if_own, of_first, own_iteration, runs, shared_out
from .lower_split_k_plan import ClusterSum, Pieces, find_cluster_loops, plan_split_k
from .serial_split_k import rewrite_serial_split_k
from .split_k_by_workspace import rewrite_workspace_split_k

CLUSTER_AXIS = "clusterCtaIdx.z"


def rewrite_split_k(kernel: ir.For, plan: ClusterSum) -> ir.For:
    """Bind the loop to the blocks of a cluster, and put the exchange after it."""
    rank = ir.Var(plan.loop.loop_var.name, "int32")
    axes = ir.thread_axes(kernel)
    thread = axes["threadIdx.x"]
    accumulator = plan.accumulator
    num_registers, num_threads = int(accumulator.shape[0]), int(thread.extent)
    shape, dtype = (num_registers, num_threads), ir.dtype_of(accumulator)
    sums = ir.new_buffer(f"{accumulator.name}_sums", shape, dtype, "shared.dyn")
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
        annotations={DISJOINT_WRITES: 1},
    )
    planned: dict[Any, Any] = {plan.loop: ir.seq(body, publish, cluster.arrive(), cluster.wait())}
    for stmt in plan.start:
        planned[stmt] = ir.replace(stmt, ir.BufferStore, of_first(rank, accumulator))
    # registers hold one share at a time: each store has its sums gathered before it
    for n, (stmt, share) in enumerate(zip(plan.stores, plan.shares, strict=True)):
        is_held = n > 0 and share.same_registers(plan.shares[n - 1])
        gather = None if is_held else gather_sums(plan, share, sums, rank, thread.loop_var)
        planned[stmt] = ir.seq(gather, shared_out(stmt, share, plan, rank))
    last = plan.stores[-1]
    *before, store = ir.statements(planned[last])
    planned[last] = ir.seq(before, cluster.arrive(), store, cluster.wait())
    kernel = ir.replace_nodes(kernel, ir.Stmt, planned)
    kernel = allocate(kernel, accumulator, sums)
    if plan.beside is not None:
        return _with_parts(kernel, rank, plan.beside.loop_var, plan.num_blocks)
    for tag in (CLUSTER_AXIS, AXIS):
        kernel = _bind(kernel, rank if tag == AXIS else ir.Var("rank", "int32"), plan, tag)
    return kernel


def _with_parts(kernel: ir.For, part: ir.Var, beside: ir.Var, num_parts: int) -> ir.For:
    """Let each part have blocks for all tiles of the cluster (bound later)."""

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


def _bind(kernel: ir.For, var: ir.Var, plan: ClusterSum, tag: str) -> ir.For:
    axis = tirx.IterVar(None, ir.Var(tag, "int32"), tirx.IterVar.ThreadIndex, tag)
    extent = tirx.IntImm("int32", plan.num_blocks)
    return ir.For(var, 0, extent, ir.ForKind.THREAD_BINDING, kernel, axis)


REWRITES = {
    BY_CLUSTER: rewrite_split_k,
    BY_KERNELS: rewrite_workspace_split_k,
    IN_TURNS: rewrite_serial_split_k,
}


def lower_split_k(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Share the sums of one function's kernels out."""
    notes: dict[int, list[RemarkNote]] = {}
    doubled: list[int] = []
    behind: list[int] = []
    arch = arch_of(func)

    def split(kernel: ir.For) -> ir.Stmt:
        plan = plan_split_k(kernel, arch)
        if plan is None:
            return kernel
        number = ir.number_of(func, kernel)
        if plan.way == IN_TURNS:  # another kernel before what is noted
            behind.append(number)
        notes[number + len(doubled) + (number in behind)] = [_remark(plan)]
        if plan.way != BY_CLUSTER:
            doubled.append(number)
        after = REWRITES[plan.way](kernel, plan)
        assert not find_cluster_loops(after), "LowerSplitK left a loop after"
        return after

    changed = renumber_notes(ir.map_kernels(func, split), doubled, behind)
    return note_kernels(changed, notes)


LowerSplitK = function_pass("LowerSplitK", bind_reduction_loop_to_grid, lower_split_k)


def _remark(plan: ClusterSum) -> RemarkNote:
    if plan.way == IN_TURNS:
        return RemarkNote(
            f"loop {plan.loop.loop_var.name}: {plan.num_blocks} thread blocks sum a part each, and "
            "add it to the same memory one after another; the last one stores"
        )
    if plan.way == BY_KERNELS:
        return RemarkNote(
            f"loop {plan.loop.loop_var.name}: {plan.num_blocks} thread blocks sum a part each, in "
            "a workspace; a second kernel adds them in the order of the parts"
        )
    shares = ", ".join(
        f"{share.per_block(plan.num_blocks)} of {int(share.loop.extent)}" for share in plan.shares
    )
    return RemarkNote(
        f"loop {plan.loop.loop_var.name}: {plan.num_blocks} thread blocks of a cluster sum a part "
        "each; their sums are added in the order of the parts, through shared memory, and each "
        f"block stores {shares} pieces of the tile"
    )


# -- in a cluster: add the partial sums of its thread blocks


def gather_sums(
    plan: ClusterSum, share: Pieces, sums: ir.Var, rank: ir.Var, thread: ir.Var
) -> ir.Stmt:
    """Add what the blocks of the cluster have summed for this block's share, in their order."""
    remote = ir.new_buffer("remote", (1,), "uint32", "local")
    dtype = ir.dtype_of(plan.accumulator)
    word = ir.new_buffer("word", (1,), dtype, "local")
    accumulator, count = plan.accumulator, share.per_block(plan.num_blocks)

    def number(peer: int) -> Any:
        if plan.beside is None:
            return tirx.IntImm("uint32", peer)
        own = tirx.Cast("uint32", plan.beside.loop_var)
        return own + tirx.IntImm("uint32", peer * int(plan.beside.extent))

    def read(register: Any, g: Any, peer: int) -> list[Any]:
        place = [register + own_iteration(share, plan, rank, g) * share.step, ir.as_int32(thread)]
        here = address.generic_to_shared(tirx.address_of(tirx.BufferLoad(sums, place)))
        return [
            cluster.peer_address(tirx.BufferLoad(remote, [0]), here, number(peer)),
            cluster.load(tirx.BufferLoad(word, [0]), tirx.BufferLoad(remote, [0]), dtype),
        ]

    def add(register: Any, g: Any) -> list[Any]:
        target = [register + g * share.step]
        parts: list[Any] = []
        for peer in range(plan.num_blocks):
            value: Any = tirx.BufferLoad(word, [0])
            if peer:
                value = tirx.BufferLoad(accumulator, target) + value
            parts += [*read(register, g, peer), ir.BufferStore(accumulator, value, target)]
        return parts

    def one(g: Any) -> ir.Stmt:
        stmts = [runs(share.registers, lambda register: ir.seq(*add(register, g)))]
        return if_own(share, plan, rank, g, ir.seq(*stmts))

    return ir.opaque_block(
        "gather",
        ir.seq(
            ir.BufferStore(remote, tirx.IntImm("uint32", 0), [0]),
            ir.BufferStore(word, tirx.const(0, dtype), [0]),
            ir.make_loop("g", count, one, unroll=True),
        ),
        alloc_buffers=[remote, word],
    )
