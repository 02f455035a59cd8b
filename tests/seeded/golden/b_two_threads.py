"""B two threads: two warps load halves of a row, each expects its own bytes.

The barrier of a slot counts both. Two slots, filled in turn; a slot is free when all have met since
it was read.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U64, Shared, hand_threaded

from .common import Kernel

ROW, TRIPS, SLOTS = 128, 4, 2
HALF_BYTES = ROW * 2


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y = X reversed in each row."""
    m = mutation

    @hand_threaded(ROW, smem=1152)
    def main(X: F32[TRIPS, ROW], Y: F32[TRIPS, ROW], tx, rows: Shared[F32], full: Shared[U64]):
        if tx == 0:
            for s in T.serial(SLOTS):
                ptx.init_mbarrier(full[128 + s], 1 if m == "B09" else 2)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.tvm_storage_sync("shared")
        for k in T.serial(TRIPS):
            if m == "B10" and tx < 64:  # every lane of the two warps expects
                T.ptx.mbarrier.expect_tx.relaxed.cta.shared__cta.b64(
                    T.address_of(full[128 + k % SLOTS]), T.uint32(HALF_BYTES)
                )
            if tx < 64 and tx % 32 == 0:
                if m == "B10":
                    ptx.arrive(full[128 + k % SLOTS])
                elif m == "B11":  # the second one only arrives
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                        T.address_of(full[128 + k % SLOTS]),
                        T.if_then_else(tx == 0, T.uint32(HALF_BYTES), T.uint32(0)),
                    )
                else:
                    ptx.expect_bytes(
                        full[128 + k % SLOTS], 2 * HALF_BYTES if m == "B08" else HALF_BYTES
                    )
                ptx.load_bytes(
                    rows[k % SLOTS * ROW + (0 if m == "B12" else tx // 32 * (ROW // 2))],
                    X[k, tx // 32 * (ROW // 2)],
                    HALF_BYTES,
                    full[128 + k % SLOTS],
                )
            ptx.wait(full[128 + k % SLOTS], k // SLOTS % 2)
            Y[k, tx] = rows[k % SLOTS * ROW + ROW - 1 - tx]
            T.ptx.fence.proxy.async_.shared__cta()
            T.tvm_storage_sync("shared")

    x = np.random.default_rng(seed).integers(-8, 9, (TRIPS, ROW)).astype("float32")
    return Kernel(main, {"X": x}, {"Y": x[:, ::-1].astype("float64")})
