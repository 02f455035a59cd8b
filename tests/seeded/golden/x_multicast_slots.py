"""X multicast slots: two CTAs load halves of rows into both; who fills a slot asks both consumers.

Two slots. A consumer warp that has read a slot releases it in both CTAs; the producer of each CTA
waits for two releases, then loads its half into both CTAs. All meet before they leave.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U32, U64, Local, Shared, hand_threaded

from .common import LOAD_1D, Kernel

WARP, ROW, TRIPS, SLOTS = 32, 64, 4, 2
HALF_BYTES = ROW * 2
MULTICAST = LOAD_1D + ".multicast::cluster"
FULL, EMPTY = 64, 66  # places of the barriers, in words of 64 bits


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[rank, k] = the two halves of X[k] added, plus the rank."""
    m = mutation
    arrivals = 1 if m == "X22" else 2

    @T.inline
    def release(bars, at, slot, lane, rank):
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.warp_sync()
        if m == "X22":  # in its own CTA alone, and counted so
            if lane == 0:
                ptx.arrive(bars[EMPTY + slot])
        else:
            if lane < 2:
                ptx.map_to_rank(at[0], bars[EMPTY + slot], rank if m == "X23" else lane)
                if m == "X25":  # the default scope, CTA: the reads were ordinary ones
                    T.ptx.mbarrier.arrive.shared__cluster.b64(at[0])
                else:
                    T.ptx.mbarrier.arrive.release.cluster.shared__cluster.b64(at[0])

    @hand_threaded(64, grid=2, cluster=2, smem=640)
    def main(
        X: F32[TRIPS, ROW], Y: F32[2, TRIPS, WARP],
        rank, tx, rows: Shared[F32], bars: Shared[U64], at: Local[U32],
    ):  # fmt: skip
        if tx == 0:
            for s in T.serial(SLOTS):
                ptx.init_mbarrier(bars[FULL + s], 1)
                ptx.init_mbarrier(bars[EMPTY + s], arrivals)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cluster_sync()
        if tx < WARP:
            if tx == 0:
                for k in T.serial(TRIPS):
                    T.cuda.mbarrier_wait_acquire_cluster(
                        T.address_of(bars[EMPTY + k % SLOTS]), (k // SLOTS % 2) ^ 1
                    )
                    ptx.expect_bytes(bars[FULL + k % SLOTS], 2 * HALF_BYTES)
                    T.ptx[MULTICAST](
                        T.address_of(rows[k % SLOTS * ROW + rank * (ROW // 2)]),
                        T.address_of(X[k, rank * (ROW // 2)]),
                        T.uint32(HALF_BYTES),
                        T.address_of(bars[FULL + k % SLOTS]),
                        T.uint16(3),
                    )
        else:
            for k in T.serial(TRIPS):
                ptx.wait(bars[FULL + k % SLOTS], k // SLOTS % 2)
                if m == "X24":
                    release(bars, at, k % SLOTS, tx - WARP, rank)
                Y[rank, k, tx - WARP] = (
                    rows[k % SLOTS * ROW + tx - WARP]
                    + rows[k % SLOTS * ROW + tx]
                    + T.Cast("float32", rank)
                )
                if m != "X24":
                    if m != "X27" or k > 0 or rank == 0:
                        release(bars, at, k % SLOTS, tx - WARP, rank)
        if m != "X26":
            T.cuda.cluster_sync()

    x = np.random.default_rng(seed).integers(-8, 9, (TRIPS, ROW)).astype("float32")
    sums = x[:, :WARP].astype("float64") + x[:, WARP:]
    return Kernel(main, {"X": x}, {"Y": np.stack([sums, sums + 1])}, grid=2)
