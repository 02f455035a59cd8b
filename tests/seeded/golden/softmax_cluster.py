"""Softmax of rows, each by a cluster of CTAs that read each other's shared memory.

A CTA has a part of the row's columns, or none.  It leaves the maximum of its part in its shared
memory, all meet at a cluster barrier, and each thread reads every CTA's maximum by
`ld.shared::cluster`; the sums likewise.  A cluster does several rows.  `by="lanes"`: lane i of each
warp reads that of CTA i, all by one instruction, and a shuffle reduces them.  Mutations C01-C11.
"""

from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U32, Elements, Local, Shared, hand_threaded

from .common import Kernel
from .plain_softmax import LOWEST, plain_softmax, rows_of_softmax, softmax, tolerance

LANES = 32
ALL = 0xFFFFFFFF


def build(
    mutation: str | None = None,
    *,
    rows: int = 1,
    columns: int = 126,
    dtype: str = "float32",
    size: int = 4,
    warps: int = 1,
    clusters: int = 1,
    by: str = "threads",
    seed: int = 0,
) -> Kernel:
    """Build the kernel: Y = softmax of each row of X; cluster i does rows i, i + clusters, ..."""
    m = mutation
    threads = LANES * warps
    part = -(-columns // size)  # columns of a CTA; the last one's may be fewer
    each = -(-part // threads)
    trips = -(-rows // clusters)
    to_peers = 0  # slots that other CTAs read: the maximum, and the sum
    sum_slot = 0 if m == "C07" else 1
    own_slots = 2  # one for each warp of this CTA

    @T.inline
    def meet():
        T.ptx.barrier.cluster.arrive.release.aligned()
        T.ptx.barrier.cluster.wait.acquire.aligned()

    @T.inline
    def reduce_warp(value, is_sum):
        for s in T.unroll(5):
            if is_sum:
                value[0] = value[0] + T.cuda.__shfl_xor_sync(T.uint32(ALL), value[0], 16 >> s, 32)
            else:
                value[0] = T.max(
                    value[0], T.cuda.__shfl_xor_sync(T.uint32(ALL), value[0], 16 >> s, 32)
                )

    @T.inline
    def reduce_block(slots, value, is_sum, slot, tx):
        """Leave the sum or maximum of the CTA in a slot for the others."""
        reduce_warp(value, is_sum)
        if tx % LANES == 0:
            slots[own_slots + tx // LANES] = value[0]
        T.tvm_storage_sync("shared")
        if tx == 0:
            for w in T.serial(1, warps):
                if is_sum:
                    value[0] = value[0] + slots[own_slots + w]
                else:
                    value[0] = T.max(value[0], slots[own_slots + w])
            slots[slot] = value[0]

    @T.inline
    def read_peer(slots, remote, word, slot, peer):
        ptx.map_to_rank(remote[0], slots[slot], peer)
        if m == "C09":
            T.ptx["ld.shared::cta.f32"](word[0], remote[0])
        else:
            T.ptx["ld.shared::cluster.f32"](word[0], remote[0])

    @T.inline
    def reduce_cluster(slots, remote, word, value, is_sum, slot, rank, lane):
        value[0] = T.float32(0 if is_sum else LOWEST)
        if by == "lanes":
            if lane < (size + 1 if m == "C11" else size):
                read_peer(slots, remote, word, slot, lane)
                value[0] = word[0]
            reduce_warp(value, is_sum)
        else:
            for i in T.serial(size):
                read_peer(
                    slots,
                    remote,
                    word,
                    slot,
                    rank if m == "C05" else (rank + i if m == "C06" else i),
                )
                if is_sum:
                    value[0] = value[0] + word[0]
                else:
                    value[0] = T.max(value[0], word[0])

    @hand_threaded(threads, grid=size * clusters, cluster=size, smem=256)
    def main(
        X: Elements(dtype)[rows, columns], Y: Elements(dtype)[rows, columns],
        bx, rank, tx, slots: Shared[F32], x: Local[F32, each], top: Local[F32], total: Local[F32],
        word: Local[F32], remote: Local[U32],
    ):  # fmt: skip
        for r in T.serial(trips):
            row = T.meta_var(r * clusters + bx // size)
            # a CTA without columns has nothing to add, but the others count on its slots
            if T.And(row < rows, rank * part < columns) if m == "C10" else row < rows:
                top[0] = T.float32(LOWEST)
                for e in T.serial(each):
                    column = T.meta_var(e * threads + tx)
                    x[e] = T.if_then_else(
                        T.And(column < part, rank * part + column < columns),
                        T.Cast("float32", X[row, rank * part + column]),
                        T.float32(LOWEST),
                    )
                    top[0] = T.max(top[0], x[e])
                reduce_block(slots, top, False, to_peers, tx)
                if m != "C01":
                    meet()
                reduce_cluster(slots, remote, word, top, False, to_peers, rank, tx % LANES)
                total[0] = T.float32(0)
                for e in T.serial(each):
                    x[e] = T.exp(x[e] - top[0])
                    total[0] = total[0] + x[e]
                reduce_block(slots, total, True, to_peers + sum_slot, tx)
                if m == "C03":
                    T.tvm_storage_sync("shared")
                elif m == "C04":
                    T.ptx.barrier.cluster.arrive.relaxed.aligned()
                    T.ptx.barrier.cluster.wait.acquire.aligned()
                elif m == "C08":
                    T.ptx.barrier.cluster.arrive.release.aligned()
                else:
                    meet()
                reduce_cluster(
                    slots, remote, word, total, True, to_peers + sum_slot, rank, tx % LANES
                )
                for e in T.serial(each):
                    column = T.meta_var(e * threads + tx)
                    if T.And(column < part, rank * part + column < columns):
                        Y[row, rank * part + column] = T.Cast(dtype, x[e] / total[0])
        if m != "C02":
            meet()  # nobody leaves while another CTA may read its shared memory

    x = rows_of_softmax(rows, columns, dtype, seed)
    return Kernel(
        main,
        {"X": x},
        {"Y": softmax(x)},
        grid=size * clusters,
        against=plain_softmax(rows, columns, dtype),
        tolerance=tolerance(dtype),
    )
