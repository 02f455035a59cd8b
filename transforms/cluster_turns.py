"""Send what the warps of a thread block have reduced to all of its cluster, in each turn of a loop.

    for r in range(63):
        if lane < 4:
            remote = mapa(address_of(of_warps[r % 2, row, 8 * rank + warp]), lane)
            st.shared::cluster(remote, total[0])
        cluster barrier: arrive, wait                          all 4 x 8 values are there

An mbarrier, as cluster_exchange.py has it for one row, tells that values are there, and not that a
room was read: the barrier of the cluster does both. A reduction that is alone in the loop has two
rooms, by turns, and comes to one barrier a turn; of several, each waits for the others' barriers.
One more at the kernel's start tells that all thread blocks run. None exits early: behind the last
barrier nobody stores to another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import address, cluster

from .butterflies import ThreadReduction


@dataclass(frozen=True)
class TurnExchange:
    """The exchange of reductions in loops; without barriers in memory."""

    barriers: tuple[ir.Var, ...] = ()

    def start(self, _kernel: ir.For) -> list[Any]:
        """Wait until all thread blocks of the cluster run."""
        return [cluster.arrive_relaxed(), cluster.wait()]

    def send(
        self, one: ThreadReduction, places: list[tuple[ir.Var, list[Any]]], warp: Any, lane: Any
    ) -> list[ir.Stmt]:
        """Let a warp store its values to each thread block, one lane to each; wait for all others'.

        Parameters
        ----------
        one : ThreadReduction
            Its results are alike in all lanes.
        places : list of (Var, list)
            For each of them the shared array, and the first indices of its row.
        warp, lane
            Numbers of the thread.
        """
        assert one.cluster is not None
        own = one.cluster.loop_var * one.num_warps + warp
        remote = ir.new_buffer("remote", (1,), "uint32", "local")
        target = tirx.BufferLoad(remote, [0])
        stmts: list[Any] = [ir.BufferStore(remote, tirx.IntImm("uint32", 0), [0])]
        for (buffer, place), value in zip(places, one.results, strict=True):
            here = tirx.address_of(tirx.BufferLoad(buffer, [*place, own]))
            peer = tirx.Cast("uint32", lane)
            stmts += [
                cluster.peer_address(target, address.generic_to_shared(here), peer),
                cluster.store(target, value, ir.dtype_of(value)),
            ]
        sent = ir.IfThenElse(lane < int(one.cluster.extent), ir.seq(*stmts), None)
        return [
            ir.opaque_block("send", sent, alloc_buffers=[remote]),
            ir.seq(cluster.arrive(), cluster.wait()),
        ]
