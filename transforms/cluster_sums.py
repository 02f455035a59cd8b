"""What thread blocks of a cluster add of one another's sums, and the stores of a block's share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import address, cluster
from tvm_hopper.plan.across_cluster import ClusterSum, Pieces

UNROLL = "pragma_unroll"


def gather_sums(
    plan: ClusterSum, share: Pieces, sums: ir.Var, rank: ir.Var, thread: ir.Var
) -> ir.Stmt:
    """Add what the blocks of the cluster have summed for this block's share, in their order."""
    remote = ir.new_buffer("remote", (1,), "uint32", "local")
    word = ir.new_buffer("word", (1,), "float32", "local")
    accumulator, count = plan.accumulator, share.per_block(plan.num_blocks)

    def number(peer: int) -> Any:
        if plan.beside is None:
            return tirx.IntImm("uint32", peer)
        own = tirx.Cast("uint32", plan.beside.loop_var)
        return own + tirx.IntImm("uint32", peer * int(plan.beside.extent))

    def read(register: Any, g: Any, peer: int) -> list[Any]:
        place = [register + _own(share, plan, rank, g) * share.step, ir.as_int32(thread)]
        here = address.generic_to_shared(tirx.address_of(tirx.BufferLoad(sums, place)))
        return [
            cluster.peer_address(tirx.BufferLoad(remote, [0]), here, number(peer)),
            cluster.load_float32(tirx.BufferLoad(word, [0]), tirx.BufferLoad(remote, [0])),
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
        stmts = [_runs(share.registers, lambda register: ir.seq(*add(register, g)))]
        return _if_own(share, plan, rank, g, ir.seq(*stmts))

    return ir.opaque_block(
        "gather",
        ir.seq(
            ir.BufferStore(remote, tirx.IntImm("uint32", 0), [0]),
            ir.BufferStore(word, tirx.const(0, "float32"), [0]),
            ir.make_loop("g", count, one, unroll=True),
        ),
        alloc_buffers=[remote, word],
    )


def _runs(registers: tuple[int, ...], body: Callable[[Any], Any]) -> ir.Stmt:
    """Execute something for each register of a list, a loop for each run of neighbours."""
    runs: list[list[int]] = []
    for register in registers:
        if runs and register == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([register, 1])
    loops: list[ir.Stmt] = []
    for first, length in runs:
        loops.append(ir.make_loop("i", length, _from(first, body), unroll=True))
    return ir.seq(*loops)


def _from(first: int, body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda i: body(first + i)


def _own(share: Pieces, plan: ClusterSum, rank: ir.Var, g: Any) -> Any:
    """Return which iteration of the whole loop is number `g` of this block."""
    return rank * share.per_block(plan.num_blocks) + ir.as_int32(g)


def _if_own(share: Pieces, plan: ClusterSum, rank: ir.Var, g: Any, stmt: ir.Stmt) -> ir.Stmt:
    extent = int(share.loop.extent)
    if share.per_block(plan.num_blocks) * plan.num_blocks == extent:
        return stmt
    return ir.IfThenElse(_own(share, plan, rank, g) < extent, stmt, None)


def shared_out(stmt: ir.Stmt, share: Pieces, plan: ClusterSum, rank: ir.Var) -> ir.Stmt:
    """Let a store run over this block's iterations; their sums are in the first registers."""
    loop, accumulator = share.loop, plan.accumulator
    own = ir.Var(loop.loop_var.name, ir.dtype_of(loop.loop_var))
    whole = ir.cast_like(_own(share, plan, rank, own), loop.loop_var)

    def visit(node: Any, mutator: Any) -> Any:
        if isinstance(node, ir.TensorLoad) and node.source.same_as(accumulator):
            return tirx.BufferLoad(
                accumulator, [ir.substitute(x, {loop.loop_var: own}) for x in node.indices]
            )
        return mutator.default_mutate(node)

    body = ir.mutate(loop.body, [(ir.TensorLoad, visit)])
    body = ir.substitute(body, {loop.loop_var: whole})
    body = _if_own(share, plan, rank, own, body)
    count = share.per_block(plan.num_blocks)
    if count == 1:
        return ir.replace_nodes(
            stmt, ir.Stmt, {loop: ir.substitute(body, {own: ir.cast_like(0, own)})}
        )
    notes = {**loop.annotations}
    if UNROLL in notes:
        notes[UNROLL] = count
    new = ir.For(own, 0, ir.cast_like(count, own), loop.kind, body, annotations=notes)
    return ir.replace_nodes(stmt, ir.Stmt, {loop: new})
