"""Send what the warps of a thread block have reduced to all of its cluster, in each turn of a loop.

    for r in range(63):
        if r % 4 == 0 and r > 0: cluster barrier                the rooms were read
        if thread 0: mbarrier arrive_expect_tx(arrived[r % 4])
        if lane < 4:
            remote = mapa(address_of(of_warps[r % 4, row, 8 * rank + warp]), lane)
            st.async(remote, total[0], mapa(address_of(arrived[r % 4]), lane))
        syncthreads()                                           if rows are staged
        mbarrier wait(arrived[r % 4], r // 4 % 2)               all 4 x 8 values are there

An mbarrier tells that values are there, and not that a room was read: the barrier of the cluster
does. It waits for what a thread block has stored to memory, so that it stands in every fourth turn
alone, and there are four rooms. One at the kernel's start tells that all thread blocks run. None
exits early: it waits for what the others send it.

Where copies overwrite earlier rows (stage_rows.py) the threads of a block meet in each turn, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import address, cluster, fences, mbarrier
from tvm_hopper.facts.dtypes import dtype_bytes

from .butterflies import ThreadReduction

ROOMS = 4  # turns between two barriers of the cluster
BULK_LOAD = "tirx.ptx.cp_async_bulk_g2s_cluster"


@dataclass(frozen=True)
class ClusterExchange:
    """The reductions of a kernel that clusters make, and the barriers that tell of arrivals."""

    reductions: tuple[ThreadReduction, ...]
    arrived: ir.Var

    @property
    def barriers(self) -> tuple[ir.Var, ...]:
        """Arrays that it needs."""
        return (self.arrived,)

    def _number(self, one: ThreadReduction) -> int:
        return next(n for n, x in enumerate(self.reductions) if x is one)

    def _barrier(self, number: Any) -> Any:
        return _at(self.arrived, [ir.as_int32(tirx.convert(number))])


@dataclass(frozen=True)
class TurnExchange(ClusterExchange):
    """The exchange of reductions in loops: a barrier for each room."""

    def start(self, kernel: ir.For) -> list[Any]:
        """Initialise the barriers, and wait until all thread blocks run."""
        count = ROOMS * len(self.reductions)
        stmts: list[Any] = [mbarrier.init(self._barrier(n), 1) for n in range(count)]
        stmts.append(mbarrier.fence_init())
        return [
            ir.IfThenElse(is_first(kernel), ir.seq(*stmts), None),
            cluster.arrive_relaxed(),
            cluster.wait(),
        ]

    def send(
        self,
        kernel: ir.For,
        one: ThreadReduction,
        places: list[tuple[ir.Var, list[Any]]],
        warp: Any,
        lane: Any,
    ) -> list[ir.Stmt]:
        """Let a warp store its values to each thread block, one lane to each; wait for all others'.

        Parameters
        ----------
        kernel : For
            Where it is.
        one : ThreadReduction
            Its results are alike in all lanes.
        places : list of (Var, list)
            For each of them the shared array, and the first indices of its row.
        warp, lane
            Numbers of the thread.
        """
        assert one.cluster is not None
        number = self._number(one)
        barrier = self._barrier(ROOMS * number + one.turn)
        ask = mbarrier.arrive_expect_tx(barrier, num_bytes(one))
        stmts = [
            ir.IfThenElse(is_first(kernel), ir.seq(ask), None),
            *send_async(one, places, warp, lane, barrier),
            *([ir.seq(fences.sync_threads())] if _is_staged(one) else []),
        ]
        if one.trip is None:
            return [*stmts, ir.seq(mbarrier.wait(barrier, 0))]
        were_read = (one.trip % ROOMS).equal(0) & (one.trip > 0)
        meet = ir.IfThenElse(were_read, ir.seq(cluster.arrive(), cluster.wait()), None)
        is_first_of_turn = not any(x.loop is one.loop for x in self.reductions[:number])
        return [
            *([meet] if is_first_of_turn else []),
            *stmts,
            ir.seq(mbarrier.wait(barrier, ir.as_int32(one.trip // ROOMS % 2))),
        ]


def send_async(
    one: ThreadReduction,
    places: list[tuple[ir.Var, list[Any]]],
    warp: Any,
    lane: Any,
    barrier: Any,
) -> list[ir.Stmt]:
    """Let a warp store its values to each thread block, one lane to each, and tell a barrier there.

    Parameters
    ----------
    one : ThreadReduction
        Its results are alike in all lanes.
    places : list of (Var, list)
        For each of them the shared array, and the first indices of its row.
    warp, lane
        Numbers of the thread.
    barrier : PrimExpr
        Where it is in this thread block.
    """
    assert one.cluster is not None
    own = one.cluster.loop_var * one.num_warps + warp
    remote = ir.new_buffer("remote", (2,), "uint32", "local")
    target, signal = (tirx.BufferLoad(remote, [n]) for n in range(2))
    peer = tirx.Cast("uint32", lane)
    stmts: list[Any] = [ir.BufferStore(remote, tirx.IntImm("uint32", 0), [n]) for n in range(2)]
    stmts.append(cluster.peer_address(signal, address.generic_to_shared(barrier), peer))
    for (buffer, place), value in zip(places, one.results, strict=True):
        here = address.generic_to_shared(_at(buffer, [*place, own]))
        stmts += [
            cluster.peer_address(target, here, peer),
            cluster.store_async(target, value, signal, ir.dtype_of(value)),
        ]
    sent = ir.IfThenElse(lane < int(one.cluster.extent), ir.seq(*stmts), None)
    return [ir.opaque_block("send", sent, alloc_buffers=[remote])]


def _is_staged(one: ThreadReduction) -> bool:
    """Tell a reduction of which StageRows takes it that threads of several warps meet there."""
    if one.loop is None or one.num_warps == 1:
        return False
    return bool(ir.find_all(one.loop, ir.Call, lambda x: x.op.name == BULK_LOAD))


def is_first(kernel: ir.For) -> Any:
    """Say of one thread of a thread block that it is meant."""
    axes = ir.thread_axes(kernel)
    first = [axes[x].loop_var.equal(0) for x in axes if x.startswith("threadIdx")]
    return ir.conjunction(first)


def num_bytes(one: ThreadReduction) -> int:
    """Return the bytes that come to a thread block for one reduction."""
    return one.rows * one.num_partials * sum(dtype_bytes(ir.dtype_of(x)) for x in one.results)


def _at(buffer: ir.Var, indices: list[Any]) -> Any:
    return tirx.address_of(tirx.BufferLoad(buffer, indices))
