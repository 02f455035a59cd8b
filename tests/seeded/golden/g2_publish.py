"""G2, the part that publishes ordinary stores: CTA 0 writes into CTA 1's shared memory.

CTA 1 waits on its own mbarrier with `.acquire.cluster`; CTA 0 arrives on it with
`.release.cluster`.  M45 drops both to the default, which is CTA scope.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U32, U64, Local, Shared, hand_threaded

from .common import Kernel

THREADS = 128


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[i] = X[i] by way of the peer's shared memory."""
    m = mutation

    @hand_threaded(THREADS, grid=2, cluster=2, smem=640)
    def main(
        X: F32[THREADS], Y: F32[THREADS],
        rank, tx, row: Shared[F32], ready: Shared[U64], remote: Local[U32, 2],
    ):  # fmt: skip
        ptx.set_up(tx, (ready[64], THREADS), sync=T.cuda.cluster_sync)
        if rank == 0:
            T.ptx.mapa.shared__cluster.u32(
                remote[0], T.cuda.cvta_generic_to_shared(T.address_of(row[tx])), T.uint32(1)
            )
            T.ptx.mapa.shared__cluster.u32(
                remote[1], T.cuda.cvta_generic_to_shared(T.address_of(ready[64])), T.uint32(1)
            )
            T.ptx["st.shared::cluster.f32"](remote[0], X[tx])
            if m == "M45":
                T.ptx.mbarrier.arrive.shared__cluster.b64(remote[1])
            else:
                T.ptx.mbarrier.arrive.release.cluster.shared__cluster.b64(remote[1])
        else:
            if m == "M45":
                ptx.wait(ready[64], 0)
            else:
                T.cuda.mbarrier_wait_acquire_cluster(T.address_of(ready[64]), 0)
            Y[tx] = row[tx]
        T.cuda.cluster_sync()

    x = np.random.default_rng(seed).integers(-8, 9, THREADS).astype("float32")
    return Kernel(main, {"X": x}, {"Y": x.astype("float64")}, grid=2)
