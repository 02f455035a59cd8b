"""Send partial sums to all thread blocks of the cluster in each iteration of the row loop.

    for r in range(63):
        if lane == 0: of_warps[r % 2, row, warp] = total[0]     8 warps of a row, or more than one
        syncthreads()
        total[0] = of_warps[r % 2, row, 0:8], combined
        if thread 0: mbarrier arrive_expect_tx(arrived[r % 32])
        if warp == 0 and lane < 4:
            remote = mapa(address_of(of_warps[2 + r % 32, row, rank]), lane)
            st.async(remote, total[0], mapa(address_of(arrived[r % 32]), lane))
        mbarrier wait(arrived[r % 32], r // 32 % 2)             all 4 values are there
        take of_warps[2 + r % 32, row, 0:4]
        if r % 32 == 31: cluster barrier arrive                 the slots were read
        ...                                                     what is made of the results
        if r % 32 == 31: cluster barrier wait

Thread blocks send one value each: with one message per warp the cluster's network would be the
bottleneck: 256 a row for 16 thread blocks of eight warps.

An mbarrier tells that values are there, and not that a slot was read: the barrier of the cluster
does. An arrival waits for what its thread has stored to memory. So it is before an iteration's
stores, of which those of the iteration before are done by then, and in few iterations: as many as
there are slots lie between (cluster_exchange_slots.py). The wait is at the iteration's end, when
all others have arrived. One at the kernel's start tells that all thread blocks run. None exits
early: it waits for what the others send it.

Where copies overwrite earlier rows (stage_rows_in_shared.py) the threads of a block
synchronise in each iteration, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import address, cluster, mbarrier
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.keys import SKEW_TURNS

from .warp_shuffles import ThreadReduction


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
class LoopExchange(ClusterExchange):
    """The exchange of reductions in loops: a barrier for each slot."""

    @property
    def rooms(self) -> int:
        """Slots of each reduction."""
        return max(x.num_rooms for x in self.reductions)

    def start(self, kernel: ir.For) -> list[Any]:
        """Initialise the barriers, and wait until all thread blocks run."""
        count = self.rooms * len(self.reductions)
        axes = ir.thread_axes(kernel)
        tx, threads = axes["threadIdx.x"].loop_var, int(axes["threadIdx.x"].extent)
        stmts: list[Any] = []
        for first in range(0, count, threads):  # one after another they would take a microsecond
            init = ir.seq(mbarrier.init(self._barrier(first + tx), 1))
            whole = first + threads <= count
            stmts.append(init if whole else ir.IfThenElse(tx < count - first, init, None))
        stmts.append(mbarrier.fence_init())
        others = [x for x in axes if x.startswith("threadIdx") and x != "threadIdx.x"]
        row = ir.conjunction([axes[x].loop_var.equal(0) for x in others])
        start = ir.IfThenElse(row, ir.seq(*stmts), None) if others else ir.seq(*stmts)
        return [start, cluster.arrive_relaxed(), cluster.wait()]

    def send(
        self,
        kernel: ir.For,
        one: ThreadReduction,
        places: list[tuple[ir.Var, list[Any]]],
        warp: Any,
        lane: Any,
    ) -> list[ir.Stmt]:
        """Let a warp store its values (`send_async`), and wait for those of all others."""
        assert one.cluster is not None
        number = self._number(one)
        barrier = self._barrier(self.rooms * number + one.turn)
        ask = mbarrier.arrive_expect_tx(barrier, num_bytes(one))
        stmts = [
            ir.IfThenElse(is_first(kernel), ir.seq(ask), None),
            *send_async(one, places, warp, lane, barrier),
        ]
        parity = 0 if one.trip is None else ir.as_int32(one.trip // one.num_rooms % 2)
        wait = ir.seq(mbarrier.wait(barrier, parity))
        if one.is_pipelined and one.by_blocks and one.has_barrier:  # PipelineRowLoop cuts here
            wait = ir.opaque_block("wait", wait, annotations={SKEW_TURNS: 1})
        return [*stmts, wait]

    def tell(self, one: ThreadReduction) -> list[ir.Stmt]:
        """Tell the cluster that the values were read, if a later iteration needs it."""
        last = [x for x in self.reductions if x.loop is one.loop][-1]
        if one.trip is None or last is not one:
            return []
        if one.turns is not None and one.turns <= one.num_rooms:
            return []
        return [ir.IfThenElse(_were_all_read(one), ir.seq(cluster.arrive()), None)]

    def end_turns(self, kernel: ir.For) -> ir.For:
        """Wait at the end of iterations for what the others tell: slots are used again after it."""
        for one in self.reductions:
            if one.loop is None or not self.tell(one):
                continue
            turn, wait = one.loop.loop_var, ir.seq(cluster.wait())
            wait = ir.IfThenElse(_were_all_read(one), wait, None)
            loops = [x for x in ir.find_all(kernel, ir.For) if x.loop_var.same_as(turn)]
            ends = {x: ir.with_body(x, ir.seq(x.body, wait)) for x in loops}
            kernel = ir.replace_nodes(kernel, ir.For, ends)
        return kernel


def _were_all_read(one: ThreadReduction) -> Any:
    """Say of an iteration that each slot was used after the last such iteration.

    In a pipelined row loop the next iteration has already sent: half of the slots are in use.
    """
    period = one.num_rooms // 2 if one.is_pipelined else one.num_rooms
    return (one.trip % period).equal(period - 1)


def send_async(
    one: ThreadReduction,
    places: list[tuple[ir.Var, list[Any]]],
    warp: Any,
    lane: Any,
    barrier: Any,
) -> list[ir.Stmt]:
    """Let a warp store its values to each thread block, one lane to each, and tell a barrier there.

    - `one`: its results are alike in all lanes.
    - `places` (list of (Var, list)): for each of them the shared array, and the first indices of
      its row.
    - `warp`, `lane`: numbers of the thread.
    - `barrier` (PrimExpr): where it is in this thread block.
    """
    assert one.cluster is not None
    own = one.cluster.loop_var
    if not one.by_blocks:
        own = own * one.num_warps + warp
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
