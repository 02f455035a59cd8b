"""Split-K in a cluster: add the partial sums of its thread blocks. Part of LowerSplitK."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import address, cluster

from .epilogue_shares import if_own, own_iteration, runs
from .lower_split_k_plan import ClusterSum, Pieces


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
