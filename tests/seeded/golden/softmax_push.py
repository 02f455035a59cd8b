"""Softmax of rows by a cluster whose CTAs push what they know into each other's shared memory.

A CTA reduces its part of a row to a record: its maximum m, and the sum s of exp(x - m).  It sends
the record to every other CTA, into the place with its rank, where an mbarrier counts what has come:

`by="copy"`: bulk copies from shared memory to shared memory, which complete on the peer's mbarrier;
`by="store"`: `st.shared::cluster` and a remote arrive with release at cluster scope.

Then M = max m and the row's sum is that of s exp(m - M).  Records are read and replaced row by row,
so a row ends with a cluster barrier, whose wait stands in front of the next records.
Mutations C12-C22.
"""

from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U32, U64, Elements, Local, Shared, hand_threaded

from .common import Kernel
from .plain_softmax import LOWEST, plain_softmax, rows_of_softmax, softmax, tolerance

LANES = 32
ALL = 0xFFFFFFFF
RECORD = 4  # words: maximum, sum, and two that fill 16 bytes
COPY = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"


def build(
    mutation: str | None = None,
    *,
    rows: int = 2,
    columns: int = 150,
    dtype: str = "float32",
    size: int = 4,
    clusters: int = 1,
    by: str = "copy",
    seed: int = 0,
) -> Kernel:
    """Build the kernel: Y = softmax of each row of X; one warp to a CTA, `size` CTAs to a row."""
    m = mutation
    part = -(-columns // size)
    each = -(-part // LANES)
    trips = -(-rows // clusters)
    came = 16 * 8 // 2  # index of the mbarrier behind the records, 8 bytes each
    own = 16 * RECORD + 4  # first word of the CTA's own record
    arrivals = {"C18": size, "copy": 1}.get(m if m == "C18" else by, size - 1)
    num_bytes = 16 * (size if m == "C13" else size - 1)

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
    def map_to(remote, i, address, peer):
        T.ptx.mapa.shared__cluster.u32(
            remote[i], T.cuda.cvta_generic_to_shared(address), T.Cast("uint32", peer)
        )

    @T.inline
    def send(words, bars, remote, top, total, rank, lane):
        """Lane i sends the record to CTA i; `top` and `total` are alike in all lanes."""
        if by == "copy":
            if lane == 0:
                words[own] = top[0]
                words[own + 1] = total[0]
                if m != "C12":
                    T.ptx.fence.proxy.async_.shared__cta()
                ptx.expect_bytes(bars[came], num_bytes)
            T.cuda.warp_sync()
        if lane < size:
            if lane != rank:
                map_to(
                    remote, 0, T.address_of(words[(lane if m == "C14" else rank) * RECORD]), lane
                )
                map_to(remote, 1, T.address_of(bars[came]), lane)
                if by == "copy":
                    T.ptx[COPY](remote[0], T.address_of(words[own]), T.uint32(16), remote[1])
                else:
                    T.ptx["st.shared::cluster.f32"](remote[0], top[0])
                    T.ptx["st.shared::cluster.f32"](remote[0] + T.uint32(4), total[0])
                    if m == "C19":
                        T.ptx.mbarrier.arrive.shared__cluster.b64(remote[1])
                    elif m == "C20":
                        T.ptx.mbarrier.arrive.relaxed.cluster.shared__cluster.b64(remote[1])
                    else:
                        T.ptx.mbarrier.arrive.release.cluster.shared__cluster.b64(remote[1])
            else:
                words[rank * RECORD] = top[0]
                words[rank * RECORD + 1] = total[0]
        T.cuda.warp_sync()

    @T.inline
    def receive(bars, r):
        if by == "copy":
            ptx.wait(bars[came], 0 if m == "C15" else r % 2)
        elif m == "C21":
            ptx.wait(bars[came], r % 2)
        elif m != "C22":
            T.cuda.mbarrier_wait_acquire_cluster(T.address_of(bars[came]), r % 2)

    @hand_threaded(LANES, grid=size * clusters, cluster=size)
    def main(
        X: Elements(dtype)[rows, columns], Y: Elements(dtype)[rows, columns],
        bx, rank, tx, words: Shared[F32], bars: Shared[U64], x: Local[F32, each], top: Local[F32],
        total: Local[F32], their: Local[F32], remote: Local[U32, 2],
    ):  # fmt: skip
        if tx == 0:
            ptx.init_mbarrier(bars[came], arrivals)
            T.ptx.fence.mbarrier_init.release.cluster()
            for i in T.serial(RECORD):
                words[own + i] = T.float32(0)
        meet()
        for r in T.serial(trips):
            row = T.meta_var(r * clusters + bx // size)
            if row < rows:
                top[0] = T.float32(LOWEST)
                for e in T.serial(each):
                    column = T.meta_var(e * LANES + tx)
                    x[e] = T.if_then_else(
                        T.And(column < part, rank * part + column < columns),
                        T.Cast("float32", X[row, rank * part + column]),
                        T.float32(LOWEST),
                    )
                    top[0] = T.max(top[0], x[e])
                reduce_warp(top, False)
                total[0] = T.float32(0)
                for e in T.serial(each):
                    total[0] = total[0] + T.exp(x[e] - top[0])
                reduce_warp(total, True)
                send(words, bars, remote, top, total, rank, tx)
                receive(bars, r)
                top[0] = T.float32(LOWEST)
                if tx < size:
                    top[0] = words[tx * RECORD]
                their[0] = top[0]
                reduce_warp(top, False)
                total[0] = T.float32(0)
                if tx < size:
                    total[0] = words[tx * RECORD + 1] * T.exp(their[0] - top[0])
                reduce_warp(total, True)
                for e in T.serial(each):
                    column = T.meta_var(e * LANES + tx)
                    if T.And(column < part, rank * part + column < columns):
                        Y[row, rank * part + column] = T.Cast(
                            dtype, T.exp(x[e] - top[0]) / total[0]
                        )
                if by == "copy":
                    if m != "C16":
                        T.ptx.fence.proxy.async_.shared__cta()
                if m != "C17":
                    meet()

    x = rows_of_softmax(rows, columns, dtype, seed)
    return Kernel(
        main,
        {"X": x},
        {"Y": softmax(x)},
        grid=size * clusters,
        against=plain_softmax(rows, columns, dtype),
        tolerance=tolerance(dtype),
    )
