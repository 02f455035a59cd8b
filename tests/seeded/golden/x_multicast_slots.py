"""X multicast slots: two CTAs load halves of rows into both; who fills a slot asks both consumers.

Two slots. A consumer warp that has read a slot releases it in both CTAs; the producer of each CTA
waits for two releases, then loads its half into both CTAs. All meet before they leave.
"""

# ruff: noqa: SIM102 -- a condition on the mutation is decided by the script parser, one on a
# thread by the kernel; nesting keeps them apart

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

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
                T.ptx.mbarrier.arrive.shared.b64(T.address_of(bars[EMPTY + slot]))
        else:
            if lane < 2:
                T.ptx.mapa.shared__cluster.u32(
                    at[0],
                    T.cuda.cvta_generic_to_shared(T.address_of(bars[EMPTY + slot])),
                    T.Cast("uint32", rank if m == "X23" else lane),
                )
                if m == "X25":  # the default scope, CTA: the reads were ordinary ones
                    T.ptx.mbarrier.arrive.shared__cluster.b64(at[0])
                else:
                    T.ptx.mbarrier.arrive.release.cluster.shared__cluster.b64(at[0])

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((TRIPS, ROW), "float32"), Y: T.Buffer((2, TRIPS, WARP), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 2)
        rank = T.launch_thread("clusterCtaIdx.x", 2)
        tx = T.launch_thread("threadIdx.x", 64)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((640,), "uint8", scope="shared.dyn", align=1024)
            rows = T.decl_buffer((160,), "float32", data=dyn_smem.data, scope="shared.dyn")
            bars = T.decl_buffer((80,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            at = T.alloc_buffer((1,), "uint32", scope="local")
            if tx == 0:
                for s in T.serial(SLOTS):
                    T.ptx.mbarrier.init.shared.b64(T.address_of(bars[FULL + s]), T.uint32(1))
                    T.ptx.mbarrier.init.shared.b64(
                        T.address_of(bars[EMPTY + s]), T.uint32(arrivals)
                    )
                T.ptx.fence.mbarrier_init.release.cluster()
            T.cuda.cluster_sync()
            if tx < WARP:
                if tx == 0:
                    for k in T.serial(TRIPS):
                        T.cuda.mbarrier_wait_acquire_cluster(
                            T.address_of(bars[EMPTY + k % SLOTS]), (k // SLOTS % 2) ^ 1
                        )
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                            T.address_of(bars[FULL + k % SLOTS]), T.uint32(2 * HALF_BYTES)
                        )
                        T.ptx[MULTICAST](
                            T.address_of(rows[k % SLOTS * ROW + rank * (ROW // 2)]),
                            T.address_of(X[k, rank * (ROW // 2)]),
                            T.uint32(HALF_BYTES),
                            T.address_of(bars[FULL + k % SLOTS]),
                            T.uint16(3),
                        )
            else:
                for k in T.serial(TRIPS):
                    T.cuda.mbarrier_wait(T.address_of(bars[FULL + k % SLOTS]), k // SLOTS % 2)
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
