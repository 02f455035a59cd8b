"""Decide how many iterations the loads of a loop run ahead, by their ring slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.row_pointers import reads_rows
from tvm_hopper.facts.async_ops import ASYNC_OPS
from tvm_hopper.requests.keys import AHEAD, ASYNC_OP, FILL_SLOT, RESERVED_SLOTS
from tvm_hopper.transforms.common.channel import (
    completes_by_group,
    find_calls,
    is_load,
    trip_variable,
)

from .plan_ring_buffers_plan import pipelined_loops


@dataclass(frozen=True)
class LoadAhead:
    """One block of loads of a loop.

    It runs as many iterations ahead as its ring has slots next to the one that is read, and those
    that are left to stores and to statements that run later.

    - `iteration`: what binds the number of its trip.
    - `load`: the block.
    - `feeds`: the statement that first reads rows of what it loads, for tensor cores.
    """

    trip: tirx.Bind
    load: ir.SBlockRealize
    feeds: ir.Stmt | None = None

    @property
    def ahead(self) -> int:
        """Trips."""
        block = self.load.block
        reserved = int(block.annotations.get(RESERVED_SLOTS, 0))
        return int(block.writes[0].source.shape[0]) - 1 - reserved

    @property
    def behind(self) -> ir.Stmt | None:
        """The statement of an iteration after which it goes; None: it stays where it is.

        Tensor cores would wait for threads that issue chunks before what feeds them: on an
        H200 a product of 4096 in each direction took 405 instead of 437 us (a box, which one thread
        issues, better goes first: 361 instead of 375). With a slot to spare the chunks have the
        time of an iteration left.
        """
        in_chunks = completes_by_group(self.load.block)
        return self.feeds if in_chunks and self.ahead > 1 else None


@dataclass(frozen=True)
class ExpansionPlan:
    """A loop, its statements, and its blocks of loads."""

    loop: ir.For
    block: ir.SBlockRealize | None  # of an iteration, if it allocates anything
    parts: tuple[ir.Stmt, ...]
    loads: tuple[LoadAhead, ...]

    @property
    def ahead(self) -> int:
        """Trips that the loads run ahead which run furthest."""
        return max((one.ahead for one in self.loads), default=0)

    @property
    def peels(self) -> bool:
        """Tell whether iterations that load nothing are not part of the loop.

        A condition around chunks that threads issue would part them from what feeds tensor cores:
        the assembler moves nothing over a branch.
        """
        return self.ahead > 0 and any(
            ASYNC_OPS[str(one.load.block.annotations[ASYNC_OP])].opens_group
            or one.behind is not None
            for one in self.loads
        )


def plan_expansions(kernel: Any) -> tuple[ExpansionPlan, ...]:
    """Return the loops of a kernel whose own threads load, the innermost first."""
    return tuple(_plan_loop(loop) for loop in reversed(pipelined_loops(kernel)))


def _plan_loop(loop: ir.For) -> ExpansionPlan:
    block = loop.body if isinstance(loop.body, ir.SBlockRealize) else None
    parts = tuple(ir.statements(loop.body if block is None else block.block.body))
    loads = []
    # An inner loop's first loads may already stand before it.
    for load in (x for x in parts if is_load(x) and AHEAD not in x.block.annotations):
        (call,) = find_calls(load, FILL_SLOT)
        trip = trip_variable(call)
        bind = next(x for x in parts if isinstance(x, tirx.Bind) and x.var.same_as(trip))
        loads.append(LoadAhead(bind, load, _find_reader(parts, load)))
    return ExpansionPlan(loop, block, parts, tuple(loads))


def _find_reader(parts: tuple[ir.Stmt, ...], load: ir.SBlockRealize) -> ir.Stmt | None:
    """Return the first statement after a load that reads rows of what it brings."""
    rings = [region.source for region in load.block.writes]
    later = parts[[x.same_as(load) for x in parts].index(True) + 1 :]
    return next((x for x in later if any(reads_rows(x, ring) for ring in rings)), None)
