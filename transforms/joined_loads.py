"""Blocks of the loads that one trip issues: they complete together."""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir
from tvm_hopper.plan.channel import fill, filled_bytes
from tvm_hopper.plan.pipeline_plan import PipelinePlan
from tvm_hopper.requests.keys import CHANNEL, STORES_IN_FLIGHT


def join_loads(plan: PipelinePlan, trip: ir.Var) -> ir.Stmt:
    """Make one block of the loads that a trip issues, which complete together."""
    blocks = [load.block for load in plan.loads]
    first = blocks[0]
    loads = [block.body for block in blocks]
    num_bytes = _sum([filled_bytes(block) for block in blocks])
    begin = fill(plan.number, trip, num_bytes)
    binds = plan.site.binds
    in_flight = {STORES_IN_FLIGHT: plan.stores_in_flight} if plan.stores_in_flight else {}
    # Bytes that are known at run time alone may be counted by what the loads bind.
    body = ir.seq(*(begin, binds) if isinstance(num_bytes, int) else (binds, begin), loads)
    return ir.opaque_block(
        first.name_hint,
        ir.fresh_variables(body) if plan.site.binds else body,
        reads=[region for block in blocks for region in block.reads],
        writes=[region for block in blocks for region in block.writes],
        annotations={**first.annotations, CHANNEL: plan.number, **in_flight},
    )


def _sum(terms: list[Any]) -> Any:
    """Add ints and integer expressions; an int if all are."""
    known = sum(x for x in terms if isinstance(x, int))
    rest = [x for x in terms if not isinstance(x, int)]
    return ir.simplify(sum(rest[1:], rest[0]) + known) if rest else known
