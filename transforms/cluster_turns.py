"""Send what the warps of a thread block have reduced to all of its cluster, in each turn of a loop.

    for r in range(63):
        if lane == 0: of_warps[r % 2, row, warp] = total[0]     8 warps of a row, or more than one
        syncthreads()
        total[0] = of_warps[r % 2, row, 0:8], combined
        if thread 0: mbarrier arrive_expect_tx(arrived[r % 32])
        if warp == 0 and lane < 4:
            if r % 16 == 0 and r >= 32:
                mbarrier wait(were_read[r // 16 % 2], ...)      rooms of the next 16 turns
            remote = mapa(address_of(of_warps[2 + r % 32, row, rank]), lane)
            st.async(remote, total[0], mapa(address_of(arrived[r % 32]), lane))
        if warp == 7 and lane < 4 and r % 16 == 0 and r > 0:
            mbarrier arrive(mapa(were_read[(r // 16 - 1) % 2], lane))    those of the last 16
        mbarrier wait(arrived[r % 32], r // 32 % 2)             all 4 values are there
        take of_warps[2 + r % 32, row, 0:4]
        ...                                                     what is made of the results
    cluster barrier

Thread blocks send one value each: with those of all warps the cluster's network is what takes the
time, 256 a row where 16 thread blocks of eight warps share it.

An mbarrier tells that values are there, and not that a room was read: one of its own does, for half
of the rooms. That arrival is a release for the whole cluster, which waits for what its thread has
stored to memory. So it is one warp's, in few turns, while the others wait for values; and what it
tells is needed as many turns later. The block's barrier in front of it says that all warps have
read what came in the turns before.

A barrier of the cluster at the kernel's start tells that all thread blocks run. One at its end
lets none exit that others still tell something.

Where copies overwrite earlier rows (stage_rows.py) the threads of a block meet in each turn, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import address, cluster, fences, mbarrier
from tvm_hopper.facts.dtypes import dtype_bytes

from .butterflies import ThreadReduction

ROOMS = 32  # turns of which thread blocks are apart at most; of half of them the cluster is told


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
    """The exchange of reductions in loops: a barrier for each room, two for what was read."""

    were_read: ir.Var

    @property
    def barriers(self) -> tuple[ir.Var, ...]:
        """Arrays that it needs."""
        return (self.arrived, self.were_read)

    @property
    def rooms(self) -> int:
        """Rooms of each reduction."""
        return max(x.num_rooms for x in self.reductions)

    def start(self, kernel: ir.For) -> list[Any]:
        """Initialise the barriers, and wait until all thread blocks run."""
        count = self.rooms * len(self.reductions)
        stmts: list[Any] = [mbarrier.init(self._barrier(n), 1) for n in range(count)]
        for n, one in enumerate(self._told()):
            tellers = int(one.cluster.extent) * one.rows  # a lane of each row's last warps
            stmts += [mbarrier.init(_at(self.were_read, [2 * n + i]), tellers) for i in range(2)]
        stmts.append(mbarrier.fence_init())
        return [
            ir.IfThenElse(is_first(kernel), ir.seq(*stmts), None),
            cluster.arrive_relaxed(),
            cluster.wait(),
        ]

    def end(self) -> list[Any]:
        """Let no thread block exit that others still tell something."""
        return [cluster.arrive_relaxed(), cluster.wait()] if self._told() else []

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
        barrier = self._barrier(self.rooms * number + one.turn)
        ask = mbarrier.arrive_expect_tx(barrier, num_bytes(one))
        told = next((n for n, x in enumerate(self._told()) if x is one), None)
        free = [] if told is None else [self._await_free(one, told)]
        stmts = [
            ir.IfThenElse(is_first(kernel), ir.seq(ask), None),
            *send_async(one, places, warp, lane, barrier, free),
        ]
        if one.trip is None:
            return [*stmts, ir.seq(mbarrier.wait(barrier, 0))]
        if told is not None:
            stmts.append(self._tell(one, told, warp, lane))
        return [*stmts, ir.seq(mbarrier.wait(barrier, ir.as_int32(one.trip // one.num_rooms % 2)))]

    def _told(self) -> list[ThreadReduction]:
        """List the first reduction of each loop: in front of it all rooms of its turns are free."""
        found: list[ThreadReduction] = []
        for one in self.reductions:
            if one.trip is not None and not any(x.loop is one.loop for x in found):
                found.append(one)
        return found

    def _await_free(self, one: ThreadReduction, told: int) -> ir.Stmt:
        """Wait, in front of each half of the rooms, until all have read what came there before."""
        half, trip = one.num_rooms // 2, one.trip
        barrier = _at(self.were_read, [ir.as_int32(2 * told + trip // half % 2)])
        wait = mbarrier.wait_for_cluster(barrier, ir.as_int32((trip // one.num_rooms + 1) % 2))
        again = (trip % half).equal(0) & (trip >= one.num_rooms)
        return ir.IfThenElse(again, ir.seq(wait), None)

    def _tell(self, one: ThreadReduction, told: int, warp: Any, lane: Any) -> ir.Stmt:
        """Tell each thread block that half of the rooms, those of the turns before, were read."""
        assert one.cluster is not None
        half, trip = one.num_rooms // 2, one.trip
        barrier = _at(self.were_read, [ir.as_int32(2 * told + (trip // half + 1) % 2)])
        remote = ir.new_buffer("remote", (1,), "uint32", "local")
        peer = tirx.BufferLoad(remote, [0])
        stmts = [
            ir.BufferStore(remote, tirx.IntImm("uint32", 0), [0]),
            cluster.peer_address(
                peer, address.generic_to_shared(barrier), tirx.Cast("uint32", lane)
            ),
            mbarrier.arrive_at_peer(peer, of_cluster=True),
        ]
        tells = (trip % half).equal(0) & (trip > 0) & (lane < int(one.cluster.extent))
        if one.by_blocks:  # whose barrier of this turn says that all warps have read
            tells, met = tells & warp.equal(one.num_warps - 1), []
        else:
            met = [fences.sync_warp()]
        told_all = ir.IfThenElse(tells, ir.seq(*stmts), None)
        return ir.seq(*met, ir.opaque_block("tell", told_all, alloc_buffers=[remote]))


def send_async(
    one: ThreadReduction,
    places: list[tuple[ir.Var, list[Any]]],
    warp: Any,
    lane: Any,
    barrier: Any,
    first: Sequence[Any] = (),
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
    first : sequence of Stmt
        What a lane does before.
    """
    assert one.cluster is not None
    own = one.cluster.loop_var
    if not one.by_blocks:
        own = own * one.num_warps + warp
    remote = ir.new_buffer("remote", (2,), "uint32", "local")
    target, signal = (tirx.BufferLoad(remote, [n]) for n in range(2))
    peer = tirx.Cast("uint32", lane)
    stmts: list[Any] = list(first)
    stmts += [ir.BufferStore(remote, tirx.IntImm("uint32", 0), [n]) for n in range(2)]
    stmts.append(cluster.peer_address(signal, address.generic_to_shared(barrier), peer))
    for (buffer, place), value in zip(places, one.results, strict=True):
        here = address.generic_to_shared(_at(buffer, [*place, own]))
        stmts += [
            cluster.peer_address(target, here, peer),
            cluster.store_async(target, value, signal, ir.dtype_of(value)),
        ]
    sends = lane < int(one.cluster.extent)
    if one.by_blocks:
        sends = sends & warp.equal(0)
    sent = ir.IfThenElse(sends, ir.seq(*stmts), None)
    return [ir.opaque_block("send", sent, alloc_buffers=[remote])]


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
