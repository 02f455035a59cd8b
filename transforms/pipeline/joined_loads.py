"""Join the loads that one iteration issues: they complete on one mbarrier.

    with sblock(async_op="tma_load"): tma_load(&a, A_map, ...)
    with sblock(async_op="cp_async"): cp_async(&b, ...)
  ->
    with sblock(async_op="tma_load", channel=0): fill_slot(0, trip); tma_load(&a, A_map, ...)
    with sblock(async_op="cp_async_arrive", channel=0, in_parts=1):
        fill_slot(0, trip); cp_async(&b, ...)

Loads by one elected thread form one block, loads by all threads another.
"""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir
from tvm_hopper.facts.async_ops import ASYNC_OPS
from tvm_hopper.requests.keys import ASYNC_OP, CHANNEL, IN_PARTS, RESERVED_SLOTS
from tvm_hopper.transforms.common.channel import fill, filled_bytes, is_made_in_parts

from .plan_ring_buffers_plan import PipelinePlan


def join_loads(plan: PipelinePlan, trip: ir.Var) -> ir.Stmt:
    """Join the loads that an iteration issues into one block, or two if threads load parts."""
    blocks = [_as_handed_over(plan, load.block) for load in plan.loads]
    made = {part: [x for x in blocks if is_made_in_parts(x) == part] for part in (False, True)}
    return ir.seq([_join(plan, trip, each) for each in made.values() if each])


def _as_handed_over(plan: PipelinePlan, block: ir.SBlock) -> ir.SBlock:
    """Let a load complete on an mbarrier, where another agent waits for it."""
    op = ASYNC_OPS[str(block.annotations[ASYNC_OP])]
    if not plan.site.is_handed_over or op.handed_over is None:
        return block
    in_parts = {} if ASYNC_OPS[op.handed_over].by_one_thread else {IN_PARTS: 1}
    notes = {**block.annotations, ASYNC_OP: op.handed_over, **in_parts}
    return ir.with_block(block, annotations=notes)


def _join(plan: PipelinePlan, trip: ir.Var, blocks: list[ir.SBlock]) -> ir.Stmt:
    first = blocks[0]
    loads = [block.body for block in blocks]
    num_bytes = _sum([filled_bytes(block) for block in blocks])
    begin = fill(plan.number, trip, num_bytes)
    binds = plan.site.binds
    in_flight = {RESERVED_SLOTS: plan.stores_in_flight} if plan.stores_in_flight else {}
    # Bytes that are known at run time alone may be counted by what the loads bind.
    body = ir.seq(*(begin, binds) if isinstance(num_bytes, int) else (binds, begin), loads)
    return ir.opaque_block(
        first.name_hint,
        ir.fresh_variables(body) if binds else body,
        reads=[region for block in blocks for region in block.reads],
        writes=[region for block in blocks for region in block.writes],
        annotations={**first.annotations, CHANNEL: plan.number, **in_flight},
    )


def _sum(terms: list[Any]) -> Any:
    """Add ints and integer expressions; an int if all are."""
    known = sum(x for x in terms if isinstance(x, int))
    rest = [x for x in terms if not isinstance(x, int)]
    return ir.simplify(sum(rest[1:], rest[0]) + known) if rest else known
