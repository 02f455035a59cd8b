"""Let consumers issue the products of an iteration one after another.

    S = A B[k]; O = O + P V[k - 1]; P = f(S)                            by each of two consumers
  ->
    if own > 0 or k > 0: bar.sync 8 + own                 the one before has issued its products
    S = A B[k]; O = O + P V[k - 1]
    if own < 1 or k < 7: bar.arrive 8 + (own + 1) % 2
    P = f(S)

One computes on what its products leave while the next one's multiply: without an order all would
multiply, and then all compute. Part of ExpandPipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import fences
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS
from tvm_hopper.requests.keys import IN_ORDER

FIRST_BARRIER = 8  # of as many as there are consumers: those of ping-pong, which no kernel has too


@dataclass(frozen=True)
class IterationOrder:
    """The consumers of a loop, of which thread `thread` is one's.

    Attributes
    ----------
    consumers
        Warp groups after the producer's; 1: there is no order.
    """

    loop: ir.For
    thread: Any
    consumers: int

    def around(
        self, parts: Sequence[Any], start: int, end: int, is_first: bool = False
    ) -> list[Any]:
        """Put the statements from `start` up to `end` of an iteration into this consumer's turn."""
        if self.consumers < 2:
            return list(parts)
        own = self.thread // WARP_GROUP_THREADS - 1
        threads = 2 * WARP_GROUP_THREADS  # one arrives, the next one waits
        enter = tirx.Evaluate(fences.sync_named(FIRST_BARRIER + own, threads))
        after = ir.simplify((own + 1) % self.consumers)
        leave = tirx.Evaluate(fences.arrive_named(FIRST_BARRIER + after, threads))
        k, loop = self.loop.loop_var, self.loop
        last = loop.min + loop.extent - 1
        has_next = (loop.min if is_first else k) < last  # the last turn has no successor that waits
        goes_on = tirx.Or(own < self.consumers - 1, has_next)
        return [
            *parts[:start],
            ir.IfThenElse(own > 0, enter, None) if is_first else enter,
            *parts[start:end],
            ir.IfThenElse(ir.simplify(goes_on), leave, None),
            *parts[end:],
        ]


def find_order(loop: ir.For, threads: ir.KernelThreads) -> IterationOrder:
    """Return the order that a loop of a warp-specialised kernel asks for.

    The loop may run once only: nothing hands the turn from its last iteration to its next run.
    """
    if IN_ORDER in loop.annotations:
        loops = ir.find_all(threads.kernel, ir.For, lambda x: x.kind != ir.ForKind.THREAD_BINDING)
        others = [x for x in loops if IN_ORDER in x.annotations and not x.same_as(loop)]
        around = [x for x in loops if ir.uses_node(x.body, loop) and not ir.is_const(x.extent, 1)]
        if around or others:
            raise cannot_lower(
                f"loop {loop.loop_var.name}, {IN_ORDER}",
                f"loop {(around + others)[0].loop_var.name} "
                + ("around it" if around else "in order, too"),
                "one loop whose consumers take turns, which a thread block runs once",
                "leave in_order out",
            )
    groups = (ir.static_int(threads.count) or 0) // WARP_GROUP_THREADS
    return IterationOrder(loop, threads.var, groups - 1 if IN_ORDER in loop.annotations else 1)
