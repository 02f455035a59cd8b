"""H shared flag: two warps hand rows to each other by counters in shared memory.

The producer's first lane releases a count of rows after the warp has met; the consumer's polls it
with acquire, and the warp meets behind it. A second counter says how many rows have been read.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim.hand_threaded import F32, U32, Local, Shared, hand_threaded

from .common import Kernel

WARP, TRIPS = 32, 3


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[k] = X[k] reversed; counters lie behind the row."""
    m = mutation
    release = {"H08": "st.volatile.shared.u32", "H09": "st.shared.u32"}.get(
        m or "", "st.release.cta.shared.u32"
    )
    acquire = "ld.volatile.shared.u32" if m == "H10" else "ld.acquire.cta.shared.u32"

    @T.inline
    def wait(seen, count, tx, least):
        if tx % WARP == 0:
            seen[0] = T.uint32(0)
            while seen[0] < T.Cast("uint32", least):
                T.ptx[acquire](seen[0], T.address_of(count))
        if m != "H11":
            T.cuda.warp_sync()

    @T.inline
    def tell(count, tx, value):
        if m != "H12":
            T.cuda.warp_sync()
        if tx % WARP == 0:
            T.ptx[release](T.address_of(count), T.Cast("uint32", value))

    @hand_threaded(64, smem=256)
    def main(
        X: F32[TRIPS, WARP], Y: F32[TRIPS, WARP],
        tx, row: Shared[F32], counts: Shared[U32], seen: Local[U32],
    ):  # fmt: skip
        if m != "H13":
            if tx < 2:
                counts[WARP + tx] = T.uint32(0)
        T.tvm_storage_sync("shared")
        if tx < WARP:
            for k in T.serial(TRIPS):
                wait(seen, counts[WARP + 1], tx, T.max(k - 1, 0) if m == "H14" else k)
                row[tx] = X[k, tx]
                tell(counts[WARP], tx, k + 1)
        else:
            for k in T.serial(TRIPS):
                wait(seen, counts[WARP], tx, k + 2 if m == "H15" else k + 1)
                Y[k, tx - WARP] = row[63 - tx]
                tell(counts[WARP + 1], tx, k + 1)

    x = np.random.default_rng(seed).integers(-8, 9, (TRIPS, WARP)).astype("float32")
    return Kernel(main, {"X": x}, {"Y": x[:, ::-1].astype("float64")})
