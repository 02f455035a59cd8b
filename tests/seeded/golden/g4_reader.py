"""G4, the reader: CTA 0 writes a partial row with plain stores, CTA 1 loads it with a bulk copy.

The flag is released and acquired at gpu scope; the reader fences the async proxy for global memory
before its copy.  M53 leaves that fence out.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from .common import LOAD_1D, Kernel

ELEMENTS = 128


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y = 2 X, by way of the workspace W."""
    m = mutation

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((ELEMENTS,), "float32"),
        W: T.Buffer((ELEMENTS,), "float32"),
        S: T.Buffer((1,), "uint32"),
        Y: T.Buffer((ELEMENTS,), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        part = T.launch_thread("blockIdx.x", 2)
        tx = T.launch_thread("threadIdx.x", ELEMENTS)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((640,), "uint8", scope="shared.dyn", align=1024)
            row = T.decl_buffer((160,), "float32", data=dyn_smem.data, scope="shared.dyn")
            full = T.decl_buffer((80,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            flag = T.alloc_buffer((1,), "uint32", scope="local")
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(full[64]), T.uint32(1))
                T.ptx.fence.mbarrier_init.release.cluster()
            T.tvm_storage_sync("shared")
            if part == 0:
                W[tx] = X[tx] * T.float32(2)
                T.tvm_storage_sync("shared")
                if tx == 0:
                    T.ptx.red.release.gpu.global_.add.u32(T.address_of(S[0]), T.uint32(1))
            else:
                if tx == 0:
                    T.cuda.wait_until(
                        flag[0], T.address_of(S[0]), flag[0] == T.uint32(1), ptx_type="u32"
                    )
                    if m != "M53":
                        T.ptx.fence.proxy.async_.global_()
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                        T.address_of(full[64]), T.uint32(ELEMENTS * 4)
                    )
                    T.ptx[LOAD_1D](
                        T.address_of(row[0]),
                        T.address_of(W[0]),
                        T.uint32(ELEMENTS * 4),
                        T.address_of(full[64]),
                    )
                T.cuda.mbarrier_wait(T.address_of(full[64]), 0)
                Y[tx] = row[tx]

    x = np.random.default_rng(seed).integers(-8, 9, ELEMENTS).astype("float32")
    twice = 2 * x.astype("float64")
    inputs = {"X": x, "S": np.zeros(1, "uint32")}
    return Kernel(main, inputs, {"Y": twice, "W": twice}, grid=2)
