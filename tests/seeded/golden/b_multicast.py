"""B multicast: two CTAs of a cluster load half a row each, into both of them; four rows.

Every CTA expects the whole row: the copies of its peer signal its own barrier. Both CTAs meet
before a row is overwritten, and before they leave.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U64, Shared, hand_threaded

from .common import LOAD_1D, Kernel

ROW, TRIPS = 128, 3
HALF_BYTES = ROW * 2
MULTICAST = LOAD_1D + ".multicast::cluster"


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[rank, k, i] = X[k, i] + rank."""
    m = mutation

    def expected_bytes(k, rank):
        if m == "B13":  # what the CTA itself issues
            return T.uint32(HALF_BYTES)
        if m == "B16":  # each row in one of the CTAs too much, in the other too little
            return T.if_then_else(rank == k % 2, T.uint32(3 * HALF_BYTES), T.uint32(HALF_BYTES))
        return T.uint32(2 * HALF_BYTES)

    @hand_threaded(ROW, grid=2, cluster=2, smem=640)
    def main(
        X: F32[TRIPS, ROW], Y: F32[2, TRIPS, ROW], rank, tx, row: Shared[F32], full: Shared[U64],
    ):  # fmt: skip
        ptx.set_up(tx, (full[64], 1), sync=T.cuda.cluster_sync)
        for k in T.serial(TRIPS):
            if tx == 0:
                T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                    T.address_of(full[64]), expected_bytes(k, rank)
                )
                if m != "B15" or k < TRIPS - 1 or rank == 0:  # B15: the last row from one CTA
                    T.ptx[MULTICAST](
                        T.address_of(row[rank * (ROW // 2)]),
                        T.address_of(X[k, rank * (ROW // 2)]),
                        T.uint32(HALF_BYTES),
                        T.address_of(full[64]),
                        T.Cast("uint16", 1 << rank) if m == "B14" else T.uint16(3),
                    )
            ptx.wait(full[64], k % 2)
            Y[rank, k, tx] = row[tx] + T.Cast("float32", rank)
            T.ptx.fence.proxy.async_.shared__cta()
            if m == "B17":  # met by the threads of one CTA alone
                T.tvm_storage_sync("shared")
            else:
                T.cuda.cluster_sync()
        if m == "B17":
            T.cuda.cluster_sync()

    x = np.random.default_rng(seed).integers(-8, 9, (TRIPS, ROW)).astype("float32")
    both = np.stack([x, x + 1]).astype("float64")
    return Kernel(main, {"X": x}, {"Y": both}, grid=2)
