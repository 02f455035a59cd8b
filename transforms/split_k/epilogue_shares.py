"""Give each thread block of a split-K sum its share of the epilogue. Part of LowerSplitK.

  for g in range(12): D[..., g] = f(acc[4 * g : 4 * g + 4])
->
  for g in range(3): D[..., 3 * rank + g] = f(acc[4 * g : 4 * g + 4])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_hopper import ir

from .lower_split_k_plan import ClusterSum, Pieces

UNROLL = "pragma_unroll"


def of_first(
    rank: ir.Var, accumulator: ir.Var | None = None
) -> Callable[[ir.BufferStore], ir.BufferStore]:
    """Return a change of initial values: the first part begins with them, the others with 0.

    What an epilogue has loaded before the sum is no such value. Kernels without an epilogue
    need not say what they sum in.
    """

    def change(store: ir.BufferStore) -> ir.BufferStore:
        is_initial = accumulator is None or store.buffer.same_as(accumulator)
        if not is_initial or ir.is_zero(store.value) or _is_choice(store.value):
            return store
        zero = tirx.const(0, ir.dtype_of(store.buffer))
        value = tirx.if_then_else(rank.equal(0), store.value, zero)
        return ir.BufferStore(store.buffer, value, list(store.indices))

    def _is_choice(value: Any) -> bool:
        return isinstance(value, ir.Call) and ir.uses(value.args[0], rank)

    return change


def runs(registers: tuple[int, ...], body: Callable[[Any], Any]) -> ir.Stmt:
    """Execute something for each register of a list, a loop for each run of neighbours."""
    runs: list[list[int]] = []
    for register in registers:
        if runs and register == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([register, 1])
    loops: list[ir.Stmt] = []
    for first, length in runs:
        loops.append(ir.make_loop("i", length, _at(first, body), unroll=True))
    return ir.seq(*loops)


def _at(first: int, body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda i: body(first + i)


def own_iteration(share: Pieces, plan: ClusterSum, rank: ir.Var, g: Any) -> Any:
    """Return which iteration of the whole loop is number `g` of this block."""
    return rank * share.per_block(plan.sharers) + ir.as_int32(g)


def if_own(share: Pieces, plan: ClusterSum, rank: ir.Var, g: Any, stmt: ir.Stmt) -> ir.Stmt:
    """Execute a statement where the iteration exists: the last blocks may have fewer."""
    extent = int(share.loop.extent)
    if share.per_block(plan.sharers) * plan.sharers == extent:
        return stmt
    return ir.IfThenElse(own_iteration(share, plan, rank, g) < extent, stmt, None)


def shared_out(stmt: ir.Stmt, share: Pieces, plan: ClusterSum, rank: ir.Var) -> ir.Stmt:
    """Let a store run over this block's iterations; their sums are in the first registers."""
    loop, accumulator = share.loop, plan.accumulator
    own = ir.Var(loop.loop_var.name, ir.dtype_of(loop.loop_var))
    whole = ir.cast_like(own_iteration(share, plan, rank, own), loop.loop_var)

    def visit(node: Any, mutator: Any) -> Any:
        if isinstance(node, ir.TensorLoad) and node.source.same_as(accumulator):
            return tirx.BufferLoad(
                accumulator, [ir.substitute(x, {loop.loop_var: own}) for x in node.indices]
            )
        return mutator.default_mutate(node)

    body = ir.mutate(loop.body, [(ir.TensorLoad, visit)])
    body = ir.substitute(body, {loop.loop_var: whole})
    body = if_own(share, plan, rank, own, body)
    count = share.per_block(plan.sharers)
    if count == 1:
        return ir.replace_nodes(
            stmt, ir.Stmt, {loop: ir.substitute(body, {own: ir.cast_like(0, own)})}
        )
    notes = {**loop.annotations}
    if UNROLL in notes:
        notes[UNROLL] = count
    new = ir.For(own, 0, ir.cast_like(count, own), loop.kind, body, annotations=notes)
    return ir.replace_nodes(stmt, ir.Stmt, {loop: new})


def allocate(kernel: ir.For, beside: ir.Var, new: ir.Var) -> ir.For:
    """Allocate a buffer in the block that allocates another one."""
    planned = {
        block: ir.with_block(block, alloc_buffers=[*block.alloc_buffers, new])
        for block in ir.find_all(kernel, ir.SBlock)
        if any(x.same_as(beside) for x in block.alloc_buffers)
    }
    return ir.replace_nodes(kernel, ir.SBlock, planned)
