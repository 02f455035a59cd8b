"""Send what the warps of a thread block have reduced to all thread blocks of its cluster.

    rank, warp, lane                                       4 thread blocks of 8 warps
      ->
    if lane < 4:
        remote = mapa(address_of(of_warps[slot, row, 8 * rank + warp]), lane)
        st.async(remote, total[0], mapa(address_of(arrived[0]), lane))
    mbarrier wait(arrived[0])                              all 4 x 8 values are there

Each thread block waits for the bytes of all of them, so that none exits while another one still
sends it something.  A barrier of the cluster at the kernel's start, waited for in front of the
first values, tells that the others run and that their mbarriers are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import address, cluster, mbarrier
from tvm_hopper.facts.dtypes import dtype_bytes

from .butterflies import ThreadReduction
from .cluster_turns import TurnExchange


@dataclass(frozen=True)
class Exchange:
    """The reductions of a kernel that clusters make, and their barriers, one for each."""

    reductions: tuple[ThreadReduction, ...]
    arrived: ir.Var

    @property
    def barriers(self) -> tuple[ir.Var, ...]:
        """Arrays that it needs."""
        return (self.arrived,)

    def start(self, kernel: ir.For) -> list[Any]:
        """Initialise the barriers, say what each waits for, and tell the cluster."""
        axes = ir.thread_axes(kernel)
        first = [axes[x].loop_var.equal(0) for x in axes if x.startswith("threadIdx")]
        sizes = list(enumerate(map(_num_bytes, self.reductions)))
        stmts: list[Any] = [mbarrier.init(self._barrier(n), 1) for n, _ in sizes]
        stmts.append(mbarrier.fence_init())
        stmts += [mbarrier.arrive_expect_tx(self._barrier(n), size) for n, size in sizes]
        return [
            ir.IfThenElse(ir.conjunction(first), ir.seq(*stmts), None),
            cluster.arrive_relaxed(),
        ]

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
        number = next(n for n, x in enumerate(self.reductions) if x is one)
        own = one.cluster.loop_var * one.num_warps + warp
        remote = ir.new_buffer("remote", (2,), "uint32", "local")
        target, signal = (tirx.BufferLoad(remote, [n]) for n in range(2))
        peer = tirx.Cast("uint32", lane)
        there = address.generic_to_shared(self._barrier(number))
        stmts: list[Any] = [ir.BufferStore(remote, tirx.IntImm("uint32", 0), [n]) for n in range(2)]
        stmts.append(cluster.peer_address(signal, there, peer))
        for (buffer, place), value in zip(places, one.results, strict=True):
            here = address.generic_to_shared(_at(buffer, [*place, own]))
            stmts += [
                cluster.peer_address(target, here, peer),
                cluster.store_async(target, value, signal, ir.dtype_of(value)),
            ]
        sent = ir.IfThenElse(lane < int(one.cluster.extent), ir.seq(*stmts), None)
        return [
            *([ir.seq(cluster.wait())] if number == 0 else []),
            ir.opaque_block("send", sent, alloc_buffers=[remote]),
            ir.seq(mbarrier.wait(self._barrier(number), 0)),
        ]

    def _barrier(self, number: int) -> Any:
        return _at(self.arrived, [tirx.IntImm("int32", number)])


def plan_exchange(
    plan: Sequence[ThreadReduction], names: ir.Names
) -> Exchange | TurnExchange | None:
    """Declare a barrier for each reduction, if clusters make them; None if thread blocks do."""
    if not any(one.cluster is not None for one in plan):
        return None
    if any(one.in_loop for one in plan):
        return TurnExchange()
    arrived = ir.new_buffer(names.take("arrived"), (len(plan),), "uint64", "shared.dyn", 8)
    return Exchange(tuple(plan), arrived)


def _num_bytes(one: ThreadReduction) -> int:
    return one.rows * one.num_partials * sum(dtype_bytes(ir.dtype_of(x)) for x in one.results)


def _at(buffer: ir.Var, indices: list[Any]) -> Any:
    return tirx.address_of(tirx.BufferLoad(buffer, indices))
