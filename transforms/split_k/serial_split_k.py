"""Serial split-K: thread blocks add to one sum in global memory in order. Part of LowerSplitK.

    acc[0:48] = 0
    for part in serial(12, annotations={"tvm_hopper.across_cluster": 4}):
        ... acc[0:48] += ... part ...
    for g in range(12): D[..., g] = f(acc[4 * g : 4 * g + 4])
  ->
    for tile, t in thread_binding(...): sums[tile, 48, t] = 0               a kernel in front
    for part in thread_binding(12, "blockIdx.z"):
        acc[0:48] = 0                                       or the initial value if part is 0
        ... acc[0:48] += ... part ...
        if part > 0:
            wait until sums[tile, 48, 32 * warp] is part    ld.acquire, by each lane
            acc[0:48] = sums[tile, 0:48, thread] + acc[0:48]
        if part < 11:
            sums[tile, 0:48, thread] = acc[0:48]
            __syncwarp
            if lane == 0: sums[tile, 48, 32 * warp] = part + 1              st.release
        else:
            for g in range(12): D[..., g] = f(acc[4 * g : 4 * g + 4])

Each thread reads what the thread of its number has stored in the block before, and nothing else:
warps take turns, each with a word of its own, and no barrier of the block is needed. The flags are
in the same array as the sums: across another `__restrict__` pointer the compiler could reorder
their accesses. The hardware starts blocks in the order of their numbers, along blockIdx.z last, so
that a block waits for blocks that run already.

There are as many sums as the output has elements, whatever the number of parts.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import fences
from tvm_hopper.facts.programming_model import THREADS_PER_WARP

from .epilogue_shares import of_first
from .lower_split_k_plan import ClusterSum
from .split_k_by_workspace import BLOCK_AXES, bind_parts
from .zero_kernels import zero_kernel


def rewrite_serial_split_k(kernel: ir.For, plan: ClusterSum) -> ir.Stmt:
    """Build the kernel, the one that zeroes its flags, and the memory."""
    axes = ir.thread_axes(kernel)
    tiles = [axes[tag] for tag in BLOCK_AXES if tag in axes]
    threads, registers = axes["threadIdx.x"], int(plan.accumulator.shape[0])
    name = plan.accumulator.name
    extents = [x.extent for x in tiles]
    shape = (*extents, registers + 1, threads.extent)
    sums = ir.new_buffer(f"{name}_sums", shape, ir.dtype_of(plan.accumulator), "global")
    tile = [ir.as_int32(x.loop_var) for x in tiles]
    thread = ir.as_int32(threads.loop_var)
    part = ir.Var(plan.loop.loop_var.name, "int32")
    last = plan.num_blocks - 1

    own_part = ir.cast_like(part, plan.loop.loop_var)
    body = ir.substitute(plan.loop.body, {plan.loop.loop_var: own_part})
    told = tirx.Cast("uint32", part)
    one = tirx.IntImm("uint32", 1)
    accumulator = plan.accumulator
    meet = [
        ir.IfThenElse(part > 0, take(accumulator, sums, tile, thread, told), None),
        ir.IfThenElse(part < last, hand_on(accumulator, sums, tile, thread, told + one), None),
    ]
    planned: dict[Any, Any] = {plan.loop: ir.seq(body, *meet)}
    for stmt in plan.start:
        planned[stmt] = ir.replace(stmt, ir.BufferStore, of_first(part, accumulator))
    for stmt in plan.stores:
        planned[stmt] = ir.IfThenElse(part.equal(last), stmt, None)
    main = bind_parts(ir.replace_nodes(kernel, ir.Stmt, planned), part, plan.num_blocks)
    zero = zero_kernel(sums, {len(tile): registers})
    return ir.opaque_block("parts", ir.seq(zero, main), alloc_buffers=[sums])


def take(accumulator: ir.Var, sums: ir.Var, place: list[Any], thread: Any, told: Any) -> ir.Stmt:
    """Wait for the flag of the previous block, and add its sums.

    `sums[*place, :, thread]` are the sums of one thread and, after them, its warp's word.
    """
    seen = ir.new_buffer("seen", (1,), "uint32", "local")
    word = tirx.BufferLoad(seen, [0])
    wait = fences.wait_for(word, _word(accumulator, sums, place, thread), word.equal(told))

    def add(i: Any) -> ir.Stmt:
        total = tirx.BufferLoad(sums, [*place, i, thread]) + tirx.BufferLoad(accumulator, [i])
        return ir.BufferStore(accumulator, total, [i])

    count = int(accumulator.shape[0])
    return ir.opaque_block(
        "take",
        ir.seq(
            ir.BufferStore(seen, tirx.IntImm("uint32", 0), [0]),
            wait,
            ir.make_loop("i", count, add, unroll=True),
        ),
        reads=[ir.full_region(accumulator), ir.full_region(sums)],
        writes=[ir.full_region(accumulator)],
        alloc_buffers=[seen],
    )


def hand_on(accumulator: ir.Var, sums: ir.Var, place: list[Any], thread: Any, told: Any) -> ir.Stmt:
    """Leave the sums to the next block, and tell it a number."""

    def put(i: Any) -> ir.Stmt:
        value = tirx.BufferLoad(accumulator, [i])
        return ir.BufferStore(sums, value, [*place, i, thread])

    count = int(accumulator.shape[0])
    return ir.opaque_block(
        "hand_on",
        ir.seq(
            ir.make_loop("i", count, put, unroll=True),
            fences.sync_warp(),
            ir.IfThenElse(
                (thread % THREADS_PER_WARP).equal(0),
                ir.Evaluate(fences.release(_word(accumulator, sums, place, thread), told)),
                None,
            ),
        ),
        reads=[ir.full_region(accumulator)],
        writes=[ir.full_region(sums)],
    )


def _word(accumulator: ir.Var, sums: ir.Var, place: list[Any], thread: Any) -> Any:
    """Return the address of the word by which a thread's warp tells the one of its number."""
    first_lane = thread // THREADS_PER_WARP * THREADS_PER_WARP
    number = tirx.IntImm("int32", int(accumulator.shape[0]))
    return tirx.address_of(tirx.BufferLoad(sums, [*place, number, first_lane]))
