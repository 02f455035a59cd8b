"""Two agents, one hazard, every synchronisation a switch: kernels for the truth tables.

One warp makes an ordinary access, then arrives; one thread waits, then issues an asynchronous copy
of the same bytes.  Fences may stand at six places, and the wait may be left out:

    warp: [a] access [b] arrive [c]   thread: [d] wait? [e] asynchronous copy   another thread: [x]
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U32, U64, Local, Shared, hand_threaded

from .common import Kernel

COUNT = 32
BYTES = COUNT * 4
HAZARDS = ("raw", "war", "waw")
PLACES = ("a", "b", "c", "d", "e", "x")


def shared(hazard: str, fences: frozenset[str], wait: bool) -> Kernel:
    """Build it over shared memory, ordered by an mbarrier."""

    @T.inline
    def fence(place):
        if place in fences:
            T.ptx.fence.proxy.async_.shared__cta()

    @T.inline
    def load(tile, full, A):
        ptx.expect_and_load(tile[0], A[0], BYTES, full[32])

    @hand_threaded(96, smem=384)
    def main(
        A: F32[COUNT], R: F32[COUNT], C: F32[COUNT],
        tx, tile: Shared[F32], full: Shared[U64], ready: Shared[U64],
    ):  # fmt: skip
        ptx.set_up(tx, (full[32], 1), (ready[33], 32))
        if tx < 32:
            if tx == 0:
                if hazard == "war":
                    load(tile, full, A)
                fence("d")
                if wait:
                    T.cuda.mbarrier_wait(T.address_of(ready[33]), 0)
                fence("e")
                if hazard == "raw":
                    ptx.store_and_wait(C[0], tile[0], BYTES, read=True)
                else:
                    load(tile, full, A)
                    T.cuda.mbarrier_wait(T.address_of(full[32]), 1 if hazard == "war" else 0)
        elif tx >= 64:
            T.cuda.mbarrier_wait(T.address_of(ready[33]), 0)
            fence("x")
        else:
            if hazard == "war":
                T.cuda.mbarrier_wait(T.address_of(full[32]), 0)
            fence("a")
            if hazard == "war":
                R[tx - 32] = tile[tx - 32]
            else:
                tile[tx - 32] = A[tx - 32]
            fence("b")
            ptx.arrive(ready[33])
            fence("c")

    return Kernel(main, {"A": np.arange(COUNT, dtype="float32")})


def across_ctas(hazard: str, fences: frozenset[str], wait: bool) -> Kernel:
    """Build it over global memory: the warp is CTA 0, the thread CTA 1, a flag orders them."""

    @T.inline
    def fence(place):
        if place in fences:
            T.ptx.fence.proxy.async_.global_()

    @hand_threaded(COUNT, grid=2, smem=384)
    def main(
        A: F32[COUNT], W: F32[COUNT], R: F32[COUNT], S: U32[1],
        bx, tx, tile: Shared[F32], full: Shared[U64], flag: Local[U32],
    ):  # fmt: skip
        ptx.set_up(tx, (full[32], 1), sync=None)
        tile[tx] = A[tx]
        T.ptx.fence.proxy.async_.shared__cta()
        T.tvm_storage_sync("shared")
        if bx == 0:
            fence("a")
            if hazard == "war":
                R[tx] = W[tx]
            else:
                W[tx] = A[tx]
            fence("b")
            T.tvm_storage_sync("shared")
            if tx == 0:
                T.ptx.red.release.gpu.global_.add.u32(T.address_of(S[0]), T.uint32(1))
                fence("c")
        else:
            if tx == 31:
                fence("x")
            if tx == 0:
                fence("d")
                if wait:
                    T.cuda.wait_until(
                        flag[0], T.address_of(S[0]), flag[0] == T.uint32(1), ptx_type="u32"
                    )
                fence("e")
                if hazard == "raw":
                    ptx.expect_and_load(tile[0], W[0], BYTES, full[32])
                    T.cuda.mbarrier_wait(T.address_of(full[32]), 0)
                else:
                    ptx.store_and_wait(W[0], tile[0], BYTES, read=True)

    inputs = {"A": np.arange(COUNT, dtype="float32"), "S": np.zeros(1, "uint32")}
    if hazard == "war":
        inputs["W"] = np.ones(COUNT, "float32")
    return Kernel(main, inputs, grid=2)
