"""Two CTAs of a cluster: rows by multicast into both, and rows pushed into the peer's memory.

`slots`: each CTA loads a half of every row into both CTAs, after both have released the slot.
`push`: each CTA stores a row into its peer and arrives there; slots and barriers are double, a peer
that is a row ahead meets the other slot. `read`: each reads its peer's row.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U32, U64, Local, Shared, hand_threaded

from ...golden.common import LOAD_1D, Kernel
from .pieces import arrive, drawn, expect, init, map_to

ROW, TRIPS, SLOTS = 32, 4, 2
MULTICAST = LOAD_1D + ".multicast::cluster"
FULL, EMPTY, PUSHED = 48, 50, 64
PUSH = "st_async.shared::cluster.mbarrier::complete_tx::bytes.f32"


def slots(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[rank, k] = X[k] + rank; one warp loads, one reads."""
    m = mutation

    @hand_threaded(64, grid=2, cluster=2, smem=512)
    def main(
        X: F32[TRIPS, ROW], Y: F32[2, TRIPS, ROW],
        rank, tx, rows: Shared[F32], bars: Shared[U64], at: Local[U32],
    ):  # fmt: skip
        if tx == 0:
            init(bars, FULL, SLOTS, 1)
            init(bars, EMPTY, SLOTS, 1 if m == "P29" else 2)
            T.ptx.fence.mbarrier_init.release.cluster()
        if m == "P30":
            T.tvm_storage_sync("shared")
        else:
            T.cuda.cluster_sync()
        if tx < 32:
            if tx == 0:
                for k in T.serial(TRIPS):
                    if m != "P31":
                        T.cuda.mbarrier_wait_acquire_cluster(
                            T.address_of(bars[EMPTY + k % SLOTS]), (k // SLOTS % 2) ^ 1
                        )
                    if m == "P32":  # the CTA counts what it issues, not what it receives
                        expect(bars[FULL + k % SLOTS], 64)
                    elif m == "P33":
                        if rank == 0:
                            expect(bars[FULL + k % SLOTS], 128)
                    else:
                        expect(bars[FULL + k % SLOTS], 128)
                    T.ptx[MULTICAST](
                        T.address_of(rows[k % SLOTS * ROW + rank * 16]),
                        T.address_of(X[k, rank * 16]),
                        T.uint32(64),
                        T.address_of(bars[FULL + k % SLOTS]),
                        T.uint16(3),
                    )
        else:
            for k in T.serial(TRIPS):
                if m == "P34":  # the row is cleared while the peer's half may be on its way
                    rows[k % SLOTS * ROW + tx - 32] = T.float32(0)
                ptx.wait(bars[FULL + k % SLOTS], k // SLOTS % 2)
                Y[rank, k, tx - 32] = rows[k % SLOTS * ROW + tx - 32] + T.Cast("float32", rank)
                T.ptx.fence.proxy.async_.shared__cta()
                T.cuda.warp_sync()
                if m == "P29":
                    if tx == 32:
                        arrive(bars[EMPTY + k % SLOTS])
                elif m == "P35":  # each of the two lanes releases in its own CTA
                    if tx < 34:
                        arrive(bars[EMPTY + k % SLOTS])
                else:
                    if tx < (64 if m == "P36" else 34):
                        map_to(at[0], bars[EMPTY + k % SLOTS], tx % 2)
                        if m == "P37":  # the form for the own CTA, with a peer's address
                            T.ptx.mbarrier.arrive.shared.b64(at[0])
                        else:
                            T.ptx.mbarrier.arrive.release.cluster.shared__cluster.b64(at[0])
        if m != "P38":
            T.cuda.cluster_sync()

    x = drawn(TRIPS, ROW, seed=seed)
    return Kernel(main, {"X": x}, {"Y": np.stack([x, x + 1])}, grid=2)


def push(mutation: str | None = None, *, how: str = "stores", seed: int = 0) -> Kernel:
    """Build it: Y[rank, k] = X[1 - rank, k] by way of memory of `rank`.

    `how`: ordinary stores and an arrival by each thread, or `st.async` whose bytes are expected.
    """
    m = mutation
    how = "async" if m == "P44" else how
    double = 1 if m == "P42" else TRIPS if how == "async" else 2  # slots and barriers

    @hand_threaded(ROW, grid=2, cluster=2, smem=640)
    def main(
        X: F32[2, TRIPS, ROW], Y: F32[2, TRIPS, ROW],
        rank, tx, rows: Shared[F32], bars: Shared[U64], at: Local[U32, 2],
    ):  # fmt: skip
        if tx == 0:
            init(bars, PUSHED, double, 1 if how == "async" else ROW)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cluster_sync()
        for k in T.serial(TRIPS):
            map_to(at[0], rows[k % double * ROW + tx], 1 - rank)
            map_to(at[1], bars[PUSHED + k % double], 1 - rank)
            if how == "async":
                if tx == 0:
                    expect(bars[PUSHED + k % double], 132 if m == "P44" else 128)
                T.ptx[PUSH](at[0], X[rank, k, tx], at[1])
            else:
                T.ptx["st.shared::cluster.f32"](at[0], X[rank, k, tx])
                if m in ("P39", "P40"):
                    T.ptx.mbarrier.arrive.shared__cluster.b64(at[1])
                else:
                    T.ptx.mbarrier.arrive.release.cluster.shared__cluster.b64(at[1])
            if m in ("P39", "P41"):
                ptx.wait(bars[PUSHED + k % double], k // double % 2)
            else:
                T.cuda.mbarrier_wait_acquire_cluster(
                    T.address_of(bars[PUSHED + k % double]),
                    0 if m == "P43" else k // double % 2,
                )
            Y[rank, k, tx] = rows[k % double * ROW + tx]
            T.cuda.warp_sync()
        T.cuda.cluster_sync()

    x = drawn(2, TRIPS, ROW, seed=seed)
    return Kernel(main, {"X": x}, {"Y": x[::-1].copy()}, grid=2)


def read(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[rank, k] = X[1 - rank, k], read from the peer's memory, one row for all trips."""
    m = mutation

    @T.inline
    def meet(relaxed):
        if relaxed:
            T.ptx.barrier.cluster.arrive.relaxed.aligned()
            T.ptx.barrier.cluster.wait.aligned()
        else:
            T.cuda.cluster_sync()

    @hand_threaded(ROW, grid=2, cluster=2, smem=128)
    def main(
        X: F32[2, TRIPS, ROW], Y: F32[2, TRIPS, ROW],
        rank, tx, row: Shared[F32, ROW], at: Local[U32], other: Local[F32],
    ):  # fmt: skip
        for k in T.serial(TRIPS):
            row[tx] = X[rank, k, tx]
            if m != "P45":
                meet(m == "P46")
            map_to(at[0], row[tx], 1 - rank)
            T.ptx.ld.shared__cluster.f32(other[0], at[0])
            Y[rank, k, tx] = other[0]
            if m != "P47":
                meet(m == "P48")

    x = drawn(2, TRIPS, ROW, seed=seed)
    return Kernel(main, {"X": x}, {"Y": x[::-1].copy()}, grid=2)
