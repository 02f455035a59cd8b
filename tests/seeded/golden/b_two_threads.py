"""B two threads: two warps load halves of a row, each expects its own bytes.

The barrier of a slot counts both. Two slots, filled in turn; a slot is free when all have met since
it was read.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from .common import LOAD_1D, Kernel

ROW, TRIPS, SLOTS = 128, 4, 2
HALF_BYTES = ROW * 2


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y = X reversed in each row."""
    m = mutation

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((TRIPS, ROW), "float32"), Y: T.Buffer((TRIPS, ROW), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", ROW)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((1152,), "uint8", scope="shared.dyn", align=1024)
            rows = T.decl_buffer((288,), "float32", data=dyn_smem.data, scope="shared.dyn")
            full = T.decl_buffer((144,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            if tx == 0:
                for s in T.serial(SLOTS):
                    T.ptx.mbarrier.init.shared.b64(
                        T.address_of(full[128 + s]), T.uint32(1 if m == "B09" else 2)
                    )
                T.ptx.fence.mbarrier_init.release.cluster()
            T.tvm_storage_sync("shared")
            for k in T.serial(TRIPS):
                if m == "B10" and tx < 64:  # every lane of the two warps expects
                    T.ptx.mbarrier.expect_tx.relaxed.cta.shared__cta.b64(
                        T.address_of(full[128 + k % SLOTS]), T.uint32(HALF_BYTES)
                    )
                if tx < 64 and tx % 32 == 0:
                    if m == "B10":
                        T.ptx.mbarrier.arrive.shared.b64(T.address_of(full[128 + k % SLOTS]))
                    elif m == "B11":  # the second one only arrives
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                            T.address_of(full[128 + k % SLOTS]),
                            T.if_then_else(tx == 0, T.uint32(HALF_BYTES), T.uint32(0)),
                        )
                    else:
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                            T.address_of(full[128 + k % SLOTS]),
                            T.uint32(2 * HALF_BYTES if m == "B08" else HALF_BYTES),
                        )
                    T.ptx[LOAD_1D](
                        T.address_of(
                            rows[k % SLOTS * ROW + (0 if m == "B12" else tx // 32 * (ROW // 2))]
                        ),
                        T.address_of(X[k, tx // 32 * (ROW // 2)]),
                        T.uint32(HALF_BYTES),
                        T.address_of(full[128 + k % SLOTS]),
                    )
                T.cuda.mbarrier_wait(T.address_of(full[128 + k % SLOTS]), k // SLOTS % 2)
                Y[k, tx] = rows[k % SLOTS * ROW + ROW - 1 - tx]
                T.ptx.fence.proxy.async_.shared__cta()
                T.tvm_storage_sync("shared")

    x = np.random.default_rng(seed).integers(-8, 9, (TRIPS, ROW)).astype("float32")
    return Kernel(main, {"X": x}, {"Y": x[:, ::-1].astype("float64")})
