"""Let consumers issue the products of an iteration one after another.

    S = A B[k]; O = O + P V[k - 1]; P = f(S)                            by each of two consumers
  ->
    if own > 0 or k > 0: bar.sync 8 + own                 the one before has issued its products
    S = A B[k]; O = O + P V[k - 1]
    if own < 1 or k < 7: bar.arrive 8 + (own + 1) % 2
    P = f(S)

One computes on what its products leave while the next one's multiply: without an order all would
multiply, and then all compute. Where the loop runs for several tiles the turns go on from tile to
tile; if the last tiles have no iteration, one arrival is left, which no one waits for. Part of
ExpandPipeline.
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

    - `consumers`: warp groups after the producer's; 1: there is no order.
    - `around`: the loops around it, each of which runs it again.
    """

    loop: ir.For
    thread: Any
    consumers: int
    around: tuple[ir.For, ...] = ()

    def enclose(
        self, parts: Sequence[Any], start: int, end: int, trip: ir.Var | None = None
    ) -> list[Any]:
        """Put the statements from `start` up to `end` of an iteration into this consumer's turn.

        - `trip`: for the first iteration, how many iterations ran before, in all tiles.
        """
        if self.consumers < 2:
            return list(parts)
        own = self.thread // WARP_GROUP_THREADS - 1
        threads = 2 * WARP_GROUP_THREADS  # one arrives, the next one waits
        enter = tirx.Evaluate(fences.sync_named(FIRST_BARRIER + own, threads))
        after = ir.simplify((own + 1) % self.consumers)
        leave = tirx.Evaluate(fences.arrive_named(FIRST_BARRIER + after, threads))
        k, loop = self.loop.loop_var, self.loop
        is_first = trip is not None
        # The last turn of all has no successor that waits.
        goes_on = tirx.Or(own < self.consumers - 1, (loop.min if is_first else k) < _last(loop))
        for outer in self.around:
            goes_on = tirx.Or(goes_on, outer.loop_var < _last(outer))
        turn: ir.Stmt = enter
        if trip is not None:
            begun = tirx.Or(own > 0, trip > 0) if self.around else own > 0
            turn = ir.IfThenElse(begun, enter, None)
        return [
            *parts[:start],
            turn,
            *parts[start:end],
            ir.IfThenElse(ir.simplify(goes_on), leave, None),
            *parts[end:],
        ]


def _last(loop: ir.For) -> Any:
    return loop.min + loop.extent - 1


def find_order(loop: ir.For, threads: ir.KernelThreads) -> IterationOrder:
    """Return the order that a loop of a warp-specialised kernel asks for."""
    loops = ir.find_all(threads.kernel, ir.For, lambda x: x.kind != ir.ForKind.THREAD_BINDING)
    if IN_ORDER in loop.annotations:
        others = [x for x in loops if IN_ORDER in x.annotations and not x.same_as(loop)]
        if others:
            raise cannot_lower(
                f"loop {loop.loop_var.name}, {IN_ORDER}",
                f"loop {others[0].loop_var.name} in order, too",
                "one loop whose consumers take turns",
                "leave in_order out",
            )
    groups = (ir.static_int(threads.count) or 0) // WARP_GROUP_THREADS
    count = groups - 1 if IN_ORDER in loop.annotations else 1
    around = tuple(x for x in loops if ir.uses_node(x.body, loop))
    return IterationOrder(loop, threads.var, count, around)
