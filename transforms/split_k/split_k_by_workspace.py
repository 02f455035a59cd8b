"""Split-K by a workspace: a second kernel adds the partial sums. Part of LowerSplitK.

    acc[0:48] = 0
    for part in serial(12, annotations={"tvm_hopper.across_cluster": 2}):
        ... acc[0:48] += ... part ...
    for g in range(12): D[..., g] = f(acc[4 * g : 4 * g + 4])
  ->
    for part in thread_binding(12, "blockIdx.z"):           a kernel
        acc[0:48] = 0                                       or the initial value if part is 0
        ... acc[0:48] += ... part ...
        sums[part, tile, 0:48, thread] = acc[0:48]          in global memory
    for piece in thread_binding(12, "blockIdx.z"):          and another one: a block for each g
        for i in range(4):
            acc[i] = sums[0, tile, 4 * piece + i, thread] + sums[1, ...] + ...
        D[..., piece] = f(acc[0:4])

What a cluster's barrier is there, the order of the kernels is here.  Nothing holds blocks of one
tile together, so that all SMs are used, and any number of parts is right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.transforms.common.multicast_groups import AXIS

from .epilogue_shares import if_own, of_first, own_iteration, runs, shared_out
from .lower_split_k_plan import ClusterSum, Pieces

BLOCK_AXES = ("blockIdx.y", "blockIdx.x")


def rewrite_workspace_split_k(kernel: ir.For, plan: ClusterSum) -> ir.Stmt:
    """Build both kernels, and the memory between them."""
    axes = ir.thread_axes(kernel)
    tiles = [axes[tag] for tag in (*BLOCK_AXES, AXIS) if tag in axes]  # z: of a cluster
    threads, registers = axes["threadIdx.x"], int(plan.accumulator.shape[0])
    shape = (plan.num_blocks, *(x.extent for x in tiles), registers, threads.extent)
    dtype = ir.dtype_of(plan.accumulator)
    sums = ir.new_buffer(f"{plan.accumulator.name}_sums", shape, dtype, "global")
    tile = [x.loop_var for x in tiles]

    def place(part: Any, register: Any) -> list[Any]:
        index = [part, *tile, register, threads.loop_var]
        return [
            ir.as_int32(x) if not isinstance(x, int) else tirx.IntImm("int32", x) for x in index
        ]

    # The second kernel waits for nothing but loads, of which more blocks have more under way.
    pieces = replace(plan, num_sharers=max(int(x.loop.extent) for x in plan.shares))
    first = _bind_beside(*_sum(kernel, plan, sums, place), plan.num_blocks)
    second = _bind_pieces(*_store(kernel, pieces, sums, place), pieces.sharers)
    return ir.opaque_block("parts", ir.seq(first, ir.fresh_variables(second)), alloc_buffers=[sums])


def _sum(kernel: ir.For, plan: ClusterSum, sums: ir.Var, place: Any) -> tuple[ir.For, ir.Var]:
    """Return the kernel of which each thread block sums one part, and the variable of that."""
    part = ir.Var(plan.loop.loop_var.name, "int32")
    count = int(plan.accumulator.shape[0])
    body = ir.substitute(
        plan.loop.body, {plan.loop.loop_var: ir.cast_like(part, plan.loop.loop_var)}
    )
    publish = ir.opaque_block(
        "publish",
        ir.make_loop(
            "i",
            count,
            lambda i: ir.BufferStore(sums, tirx.BufferLoad(plan.accumulator, [i]), place(part, i)),
            unroll=True,
        ),
        reads=[ir.full_region(plan.accumulator)],
        writes=[ir.full_region(sums)],
    )
    planned: dict[Any, Any] = {plan.loop: ir.seq(body, publish)}
    for stmt in plan.start:
        planned[stmt] = ir.replace(stmt, ir.BufferStore, of_first(part, plan.accumulator))
    planned |= dict.fromkeys(plan.stores, ir.seq())
    return ir.replace_nodes(kernel, ir.Stmt, planned), part


def _store(kernel: ir.For, plan: ClusterSum, sums: ir.Var, place: Any) -> tuple[ir.For, ir.Var]:
    """Return the kernel of which each thread block stores its share of a tile."""
    part = ir.Var("piece", "int32")
    planned: dict[Any, Any] = dict.fromkeys((plan.loop, *plan.start), ir.seq())
    for stmt, share in zip(plan.stores, plan.shares, strict=True):
        gather = _gather(plan, share, sums, part, place)
        planned[stmt] = ir.seq(gather, shared_out(stmt, share, plan, part))
    kernel = ir.replace_nodes(kernel, ir.Stmt, planned)
    return ir.mutate(kernel, [(ir.For, _with_own_axis)]), part


def _bind_pieces(kernel: ir.For, piece: ir.Var, count: int) -> ir.For:
    """Bind the pieces of a tile to blocks, together with the tiles of a cluster."""
    beside = ir.thread_axes(kernel).get(AXIS)
    if beside is None:
        return bind_parts(kernel, piece, count)
    size = int(beside.extent)
    block = ir.Var("block", "int32")
    values = {piece: block // size, beside.loop_var: ir.cast_like(block % size, beside.loop_var)}
    kernel = ir.substitute(ir.replace_nodes(kernel, ir.For, {beside: beside.body}), values)
    return bind_parts(kernel, block, count * size)


def _bind_beside(kernel: ir.For, part: ir.Var, count: int) -> ir.For:
    """Bind the parts to a separate axis, or next to rows of tiles where a cluster has that."""
    axes = ir.thread_axes(kernel)
    if AXIS not in axes:
        return bind_parts(kernel, part, count)
    rows = axes["blockIdx.y"]
    block = ir.Var("block", ir.dtype_of(rows.loop_var))
    values = {rows.loop_var: block % rows.extent, part: ir.as_int32(block // rows.extent)}
    extent = ir.simplify(rows.extent * ir.cast_like(count, rows.loop_var))
    body = ir.substitute(rows.body, values)
    new = ir.with_body(rows, body, loop_var=block, extent=extent)
    return ir.replace_nodes(kernel, ir.For, {rows: new})


def _with_own_axis(loop: ir.For, mutator: Any) -> ir.Stmt:
    """Bind a loop to an axis of this kernel, without the other kernel's tile order."""
    loop = mutator.default_mutate(loop)
    if loop.thread_binding is None:
        return loop
    axis = _axis(str(loop.thread_binding.thread_tag))
    return ir.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, axis)


def _axis(tag: str) -> tirx.IterVar:
    return tirx.IterVar(None, ir.Var(tag, "int32"), tirx.IterVar.ThreadIndex, tag)


def _gather(plan: ClusterSum, share: Pieces, sums: ir.Var, part: ir.Var, place: Any) -> ir.Stmt:
    """Add the sums of all parts for this block's share of the registers, in their order."""
    accumulator = plan.accumulator

    def add(register: Any, g: Any) -> ir.Stmt:
        source = register + own_iteration(share, plan, part, g) * share.step
        total: Any = tirx.BufferLoad(sums, place(0, source))
        for other in range(1, plan.num_blocks):
            total = total + tirx.BufferLoad(sums, place(other, source))
        return ir.BufferStore(accumulator, total, [register + g * share.step])

    def one(g: Any) -> ir.Stmt:
        return if_own(share, plan, part, g, runs(share.registers, lambda r: add(r, g)))

    return ir.opaque_block(
        "gather",
        ir.make_loop("g", share.per_block(plan.sharers), one, unroll=True),
        reads=[ir.full_region(sums)],
        writes=[ir.full_region(accumulator)],
    )


def bind_parts(kernel: ir.For, part: ir.Var, count: int) -> ir.For:
    """Bind a variable to as many blocks of an axis."""
    extent = tirx.IntImm("int32", count)
    return ir.For(part, 0, extent, ir.ForKind.THREAD_BINDING, kernel, _axis(AXIS))
