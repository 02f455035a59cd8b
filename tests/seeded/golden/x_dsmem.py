"""X dsmem: two CTAs of a cluster add up their rows through each other's shared memory.

Each stores its row, all meet, each reads the peer's row, all meet again: nobody leaves while its
memory is read. A message of one word to the peer stands between the two meetings.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U32, Local, Shared, hand_threaded

from .common import Kernel

ROW = 64


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[rank] = X[rank] + X[other], Z[rank] = the other's rank."""
    m = mutation

    @hand_threaded(ROW, grid=2, cluster=2, smem=384)
    def main(
        X: F32[2, ROW], Y: F32[2, ROW], Z: F32[2],
        rank, tx, row: Shared[F32], at: Local[U32], other: Local[F32],
    ):  # fmt: skip
        row[tx] = X[rank, tx]
        if m == "X01":
            T.tvm_storage_sync("shared")
        elif m in ("X02", "X28", "X29"):
            if m == "X28":
                T.ptx.fence.mbarrier_init.release.cluster()
            if m == "X29":
                T.ptx["fence.acq_rel.cta"]()
            T.ptx.barrier.cluster.arrive.relaxed.aligned()
            T.ptx.barrier.cluster.wait.aligned()
        elif m == "X30":
            T.ptx.barrier.cluster.arrive.aligned()
            if tx % 32 == 0:
                T.ptx.barrier.cluster.wait.aligned()
        elif m != "X03":
            T.cuda.cluster_sync()
        ptx.map_to_rank(at[0], row[tx], rank + 1 if m == "X04" else 1 - rank)
        T.ptx.ld.shared__cluster.f32(other[0], at[0])
        if m != "X07" and tx == 0:
            T.ptx.st.shared__cluster.f32(at[0] + T.uint32(256), T.Cast("float32", rank))
        if m == "X06":
            row[tx] = X[rank, tx] + other[0]
        if m != "X05":
            T.cuda.cluster_sync()
        if m == "X07" and tx == 0:  # said once the peer may have left
            T.ptx.st.shared__cluster.f32(at[0] + T.uint32(256), T.Cast("float32", rank))
        Y[rank, tx] = X[rank, tx] + other[0]
        if tx == 0:
            Z[rank] = row[64]

    x = np.random.default_rng(seed).integers(-8, 9, (2, ROW)).astype("float32")
    both = np.tile(x.sum(0, dtype="float64"), (2, 1))
    return Kernel(main, {"X": x}, {"Y": both, "Z": np.array([1.0, 0.0])}, grid=2)
