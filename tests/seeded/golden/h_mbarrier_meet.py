"""H mbarrier meet: an mbarrier as a plain barrier of four warps, three meetings.

Every warp arrives by one lane, once its lanes have met, and waits for the phase by its parity.
"""

# ruff: noqa: SIM102 -- a condition on the mutation is decided by the script parser, one on a
# thread by the kernel; nesting keeps them apart

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from .common import Kernel

THREADS, TURNS = 128, 3


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y = X turned by 32 places, three times; two rows of shared memory in turn."""
    m = mutation
    count = {"H31": 3, "H32": 128}.get(m or "", 4)

    @T.inline
    def meet(bar, tx, turn):
        if m == "H37":
            if tx % 32 < 16:
                T.cuda.warp_sync()
        elif m != "H34":
            T.cuda.warp_sync()
        if m == "H35":  # in divergent code: one side of the warp and the other
            if tx % 32 < 16:
                T.tvm_storage_sync("shared")
        if tx % 32 == 0:
            T.ptx.mbarrier.arrive.shared.b64(T.address_of(bar))
        if m == "H33":  # the one lane that arrived waits
            if tx % 32 == 0:
                T.cuda.mbarrier_wait(T.address_of(bar), turn % 2)
        else:
            T.cuda.mbarrier_wait(T.address_of(bar), 0 if m == "H30" else turn % 2)

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((THREADS,), "float32"), Y: T.Buffer((THREADS,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", THREADS)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((1152,), "uint8", scope="shared.dyn", align=1024)
            rows = T.decl_buffer((288,), "float32", data=dyn_smem.data, scope="shared.dyn")
            bars = T.decl_buffer((144,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            held = T.alloc_buffer((1,), "float32", scope="local")
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(bars[128]), T.uint32(count))
            T.tvm_storage_sync("shared")
            held[0] = X[tx]
            for turn in T.serial(TURNS):
                rows[(0 if m == "H36" else turn % 2 * THREADS) + tx] = held[0]
                meet(bars[128], tx, turn)
                held[0] = rows[(0 if m == "H36" else turn % 2 * THREADS) + (tx + 32) % THREADS]
            Y[tx] = held[0]

    x = np.random.default_rng(seed).integers(-8, 9, THREADS).astype("float32")
    return Kernel(main, {"X": x}, {"Y": np.roll(x, -32 * TURNS).astype("float64")})
