"""G2, the part that publishes ordinary stores: CTA 0 writes into CTA 1's shared memory.

CTA 1 waits on its own mbarrier with `.acquire.cluster`; CTA 0 arrives on it with
`.release.cluster`.  M45 drops both to the default, which is CTA scope.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from .common import Kernel

THREADS = 128


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[i] = X[i] by way of the peer's shared memory."""
    m = mutation

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((THREADS,), "float32"), Y: T.Buffer((THREADS,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 2)
        rank = T.launch_thread("clusterCtaIdx.x", 2)
        tx = T.launch_thread("threadIdx.x", THREADS)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((640,), "uint8", scope="shared.dyn", align=1024)
            row = T.decl_buffer((160,), "float32", data=dyn_smem.data, scope="shared.dyn")
            ready = T.decl_buffer((80,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            remote = T.alloc_buffer((2,), "uint32", scope="local")
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(ready[64]), T.uint32(THREADS))
                T.ptx.fence.mbarrier_init.release.cluster()
            T.cuda.cluster_sync()
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
                    T.cuda.mbarrier_wait(T.address_of(ready[64]), 0)
                else:
                    T.cuda.mbarrier_wait_acquire_cluster(T.address_of(ready[64]), 0)
                Y[tx] = row[tx]
            T.cuda.cluster_sync()

    x = np.random.default_rng(seed).integers(-8, 9, THREADS).astype("float32")
    return Kernel(main, {"X": x}, {"Y": x.astype("float64")}, grid=2)
