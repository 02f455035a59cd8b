"""Send the partial sums of each warp to all thread blocks of the cluster.

    rank, warp, lane                                       4 thread blocks of 8 warps
      ->
    if lane < 4:
        remote = mapa(address_of(of_warps[slot, row, 8 * rank + warp]), lane)
        st.async(remote, total[0], mapa(address_of(arrived[0]), lane))
    mbarrier wait(arrived[0])                              all 4 x 8 values are there

Each thread block waits for the bytes of all of them, so that none exits while another one still
sends it something. A cluster barrier at the kernel's start ensures that the other blocks run and
have initialised their mbarriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import cluster, mbarrier

from .cluster_exchange_loop import ClusterExchange, LoopExchange, is_first, num_bytes, send_async
from .warp_shuffles import ThreadReduction


@dataclass(frozen=True)
class Exchange(ClusterExchange):
    """The exchange of reductions that are made once: a barrier for each."""

    def start(self, kernel: ir.For) -> list[Any]:
        """Initialise the barriers, say what each waits for, and tell the cluster."""
        sizes = list(enumerate(map(num_bytes, self.reductions)))
        stmts: list[Any] = [mbarrier.init(self._barrier(n), 1) for n, _ in sizes]
        stmts.append(mbarrier.fence_init())
        stmts += [mbarrier.arrive_expect_tx(self._barrier(n), size) for n, size in sizes]
        return [
            ir.IfThenElse(is_first(kernel), ir.seq(*stmts), None),
            cluster.arrive_relaxed(),
        ]

    def send(
        self,
        _kernel: ir.For,
        one: ThreadReduction,
        places: list[tuple[ir.Var, list[Any]]],
        warp: Any,
        lane: Any,
    ) -> list[ir.Stmt]:
        """Let a warp send its values (`send_async`), and wait for those of all others."""
        number = self._number(one)
        return [
            *([ir.seq(cluster.wait())] if number == 0 else []),
            *send_async(one, places, warp, lane, self._barrier(number)),
            ir.seq(mbarrier.wait(self._barrier(number), 0)),
        ]


def plan_exchange(
    plan: Sequence[ThreadReduction], names: ir.Names
) -> Exchange | LoopExchange | None:
    """Declare a barrier for each reduction, if clusters make them; None if thread blocks do."""
    if not any(one.cluster is not None for one in plan):
        return None
    turns = any(one.trip is not None for one in plan)
    count = max(x.num_rooms for x in plan) * len(plan) if turns else len(plan)
    arrived = ir.new_buffer(names.take("arrived"), (count,), "uint64", "shared.dyn", 8)
    return LoopExchange(tuple(plan), arrived) if turns else Exchange(tuple(plan), arrived)
