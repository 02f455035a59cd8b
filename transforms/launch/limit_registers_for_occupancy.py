"""Limit registers so that the requested number of thread blocks fits an SM.

    for bx in thread_binding(65536, "blockIdx.x", annotations={"tvm_hopper.blocks_per_sm": 4}):
        for tx in thread_binding(256, "threadIdx.x"): ...
  ->
    for bx in thread_binding(65536, "blockIdx.x"):
        for tx in thread_binding(256, "threadIdx.x"):
            attr "tirx.launch_bounds_min_blocks_per_sm" = 4: ...

The assembler keeps what it has computed once, a row in float32 next to its 16 bits, as long as a
thread block has registers: with 90 of them for each of 256 threads two blocks share an SM, and
while they wait for a barrier nothing is in flight.  Held to 64 it computes them again.

Before: the kernel's threads are final.  After: CUDA's `__launch_bounds__` has both numbers.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.requests.keys import BLOCKS_PER_SM
from tvm_hopper.transforms.kernel_pass import kernel_pass

BOUND = "tirx.launch_bounds_min_blocks_per_sm"


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

    def plain(loop: ir.For) -> ir.For:
        if BLOCKS_PER_SM not in loop.annotations:
            return loop
        rest = {k: v for k, v in loop.annotations.items() if k != BLOCKS_PER_SM}
        return ir.with_body(loop, loop.body, annotations=rest)

    return ir.replace(kernel, ir.For, plain)


LimitRegistersForOccupancy = kernel_pass(
    "LimitRegistersForOccupancy",
    plan_limit,
    rewrite_limit,
    when=lambda kernel: "blockIdx.x" in ir.thread_axes(kernel),
)
