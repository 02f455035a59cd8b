"""X dsmem: two CTAs of a cluster add up their rows through each other's shared memory.

Each stores its row, all meet, each reads the peer's row, all meet again: nobody leaves while its
memory is read. A message of one word to the peer stands between the two meetings.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from .common import Kernel

ROW = 64


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[rank] = X[rank] + X[other], Z[rank] = the other's rank."""
    m = mutation

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((2, ROW), "float32"),
        Y: T.Buffer((2, ROW), "float32"),
        Z: T.Buffer((2,), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 2)
        rank = T.launch_thread("clusterCtaIdx.x", 2)
        tx = T.launch_thread("threadIdx.x", ROW)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((384,), "uint8", scope="shared.dyn", align=1024)
            row = T.decl_buffer((96,), "float32", data=dyn_smem.data, scope="shared.dyn")
            at = T.alloc_buffer((1,), "uint32", scope="local")
            other = T.alloc_buffer((1,), "float32", scope="local")
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
            T.ptx.mapa.shared__cluster.u32(
                at[0],
                T.cuda.cvta_generic_to_shared(T.address_of(row[tx])),
                T.Cast("uint32", rank + 1 if m == "X04" else 1 - rank),
            )
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
