"""Load and widen an epilogue's vectors while tensor cores compute a tile's last products.

    ahead[0:64] = bias[...]
    for k in serial(64): ...; mma_async(acc, ...); commit_group(); wait_group(0); ...
    hold(ahead)
    for i in unroll(128): f(acc[i], 0.5 * cast(float32, ahead[i']))
  ->
    for k in serial(62): ...; mma_async(acc, ...); commit_group(); wait_group(0); ...
    ahead[0:64] = bias[...]
    ...; mma_async(acc, ...); commit_group(); wait_group(0); ...                            k = 62
    ...; mma_async(acc, ...); commit_group()                                                k = 63
    hold(ahead)
    for i in unroll(64): wide[i] = 0.5 * cast(float32, ahead[i]); hold(wide[i])
    wait_group(0); nothing is moved over this; ...
    for i in unroll(128): f(acc[i], wide[i'])

Taken apart after the sum they cost an instruction of every eight that gelu takes, and nothing
multiplies meanwhile; nor does it while they are loaded before the sum (epilogue_prefetch.py).
In the last turn but one another warp group's products are under way, and a turn is as long as a
load. ptxas puts what widens in between the products: no instruction keeps it from that which does
not serialise them (an exit never taken is C7517, NVRTC 13.0).

Before: waits are placed, slots are handed over.  After: the same values; what is held is wide.
Left alone: loops whose number of turns is not known, or below four, or whose products are still
under way after their wait; vectors that do not fit next to the accumulator.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.hold import fence_code, hold
from tvm_hopper.transforms.kernel_pass import kernel_pass

from .overlap_epilogue_loads_plan import BesidePlan, WideVector, plan_epilogue_overlap


def rewrite_epilogue_overlap(kernel: ir.For, plans: tuple[BesidePlan, ...]) -> Any:
    """Give each loop's last turn the work, and its readers the result."""
    loops = {plan.loop: _with_last_turns(plan) for plan in plans}
    vectors = [x for plan in plans for x in plan.vectors]
    moved = [x for vector in vectors for x in (vector.names, vector.held, vector.loaded)]
    gone: dict[Any, Any] = {x: ir.seq() for x in moved if x is not None}
    reads = {
        node: tirx.BufferLoad(vector.wide, [load.indices[0]])
        for vector in vectors
        for node, load in vector.reads.items()
    }

    def expression(node: Any, mutator: Any) -> Any:
        return reads[node] if node in reads else mutator.default_mutate(node)

    def allocate(block: ir.SBlock) -> ir.SBlock:
        more = [x.wide for x in vectors if any(x.pairs.same_as(y) for y in block.alloc_buffers)]
        return ir.with_block(block, alloc_buffers=[*block.alloc_buffers, *more]) if more else block

    kernel = ir.mutate(kernel, [(tirx.Mul, expression), (tirx.Cast, expression)])
    kernel = ir.replace_nodes(kernel, ir.Stmt, gone | loops)
    return ir.replace(ir.drop_empty(kernel), ir.SBlock, allocate)


def _with_last_turns(plan: BesidePlan) -> ir.Stmt:
    """Load what is read before the last turn but one, and widen it in the last."""
    loop, turns = plan.loop, int(plan.loop.extent)
    at, parts = plan.wait, list(ir.statements(loop.body))
    wide = [_widen(x) for x in plan.vectors]
    fence = ir.Evaluate(fence_code())
    last = [*parts[:at], *wide, parts[at], fence, *parts[at + 1 :]]

    def turn(number: int, body: list[ir.Stmt]) -> Any:
        place = {loop.loop_var: tirx.IntImm(ir.dtype_of(loop.loop_var), number)}
        return ir.substitute(ir.fresh_variables(ir.seq(*body)), place)

    return ir.seq(
        ir.with_body(loop, loop.body, extent=turns - 2),
        *(x.loaded for x in plan.vectors),
        turn(turns - 2, parts),
        turn(turns - 1, last),
    )


def _widen(vector: WideVector) -> ir.Stmt:
    def one(i: Any) -> ir.Stmt:
        value = tirx.Cast("float32", tirx.BufferLoad(vector.pairs, [i]))
        if vector.factor != 1:
            value = tirx.const(vector.factor, "float32") * value
        kept = ir.Evaluate(hold(tirx.BufferLoad(vector.wide, [i])))
        return ir.seq(ir.BufferStore(vector.wide, value, [i]), kept)

    def two(i: Any) -> ir.Stmt:
        return ir.seq(one(i * 2), one(i * 2 + 1))

    size = int(vector.pairs.shape[0])
    return ir.seq(vector.names, vector.held, ir.make_loop("i", size // 2, two, unroll=True))


OverlapEpilogueLoads = kernel_pass(
    "OverlapEpilogueLoads", plan_epilogue_overlap, rewrite_epilogue_overlap
)
