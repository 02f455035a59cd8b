"""Two agents, one hazard, every synchronisation a switch: kernels for the truth tables.

One warp makes an ordinary access, then arrives; one thread waits, then issues an asynchronous copy
of the same bytes.  Fences may stand at five places, a to e, and the wait may be left out:

    warp:    [a] access [b] arrive [c]            thread:  [d] wait? [e] asynchronous copy
"""


# by the kernel; nesting keeps them apart

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from .common import LOAD_1D, STORE_1D, Kernel

COUNT = 32
BYTES = COUNT * 4
HAZARDS = ("raw", "war", "waw")
PLACES = ("a", "b", "c", "d", "e")


def shared(hazard: str, fences: frozenset[str], wait: bool) -> Kernel:
    """Build it over shared memory, ordered by an mbarrier."""

    @T.inline
    def fence(place):
        if place in fences:
            T.ptx.fence.proxy.async_.shared__cta()

    @T.inline
    def load(tile, full, A):
        T.ptx.mbarrier.arrive.expect_tx.shared.b64(T.address_of(full[32]), T.uint32(BYTES))
        T.ptx[LOAD_1D](
            T.address_of(tile[0]), T.address_of(A[0]), T.uint32(BYTES), T.address_of(full[32])
        )

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((COUNT,), "float32"),
        R: T.Buffer((COUNT,), "float32"),
        C: T.Buffer((COUNT,), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 64)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((384,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((96,), "float32", data=dyn_smem.data, scope="shared.dyn")
            full = T.decl_buffer((48,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            ready = T.decl_buffer((48,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(full[32]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(T.address_of(ready[33]), T.uint32(32))
                T.ptx.fence.mbarrier_init.release.cluster()
            T.tvm_storage_sync("shared")
            if tx < 32:
                if tx == 0:
                    if hazard == "war":
                        load(tile, full, A)
                    fence("d")
                    if wait:
                        T.cuda.mbarrier_wait(T.address_of(ready[33]), 0)
                    fence("e")
                    if hazard == "raw":
                        T.ptx[STORE_1D](T.address_of(C[0]), T.address_of(tile[0]), T.uint32(BYTES))
                        T.ptx.cp.async_.bulk.commit_group()
                        T.ptx["cp.async.bulk.wait_group.read"](0)
                    else:
                        load(tile, full, A)
                        T.cuda.mbarrier_wait(T.address_of(full[32]), 1 if hazard == "war" else 0)
            else:
                if hazard == "war":
                    T.cuda.mbarrier_wait(T.address_of(full[32]), 0)
                fence("a")
                if hazard == "war":
                    R[tx - 32] = tile[tx - 32]
                else:
                    tile[tx - 32] = A[tx - 32]
                fence("b")
                T.ptx.mbarrier.arrive.shared.b64(T.address_of(ready[33]))
                fence("c")

    return Kernel(main, {"A": np.arange(COUNT, dtype="float32")})


def across_ctas(hazard: str, fences: frozenset[str], wait: bool) -> Kernel:
    """Build it over global memory: the warp is CTA 0, the thread CTA 1, a flag orders them."""

    @T.inline
    def fence(place):
        if place in fences:
            T.ptx.fence.proxy.async_.global_()

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((COUNT,), "float32"),
        W: T.Buffer((COUNT,), "float32"),
        R: T.Buffer((COUNT,), "float32"),
        S: T.Buffer((1,), "uint32"),
    ):
        T.func_attr({"global_symbol": "main"})
        part = T.launch_thread("blockIdx.x", 2)
        tx = T.launch_thread("threadIdx.x", COUNT)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((384,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((96,), "float32", data=dyn_smem.data, scope="shared.dyn")
            full = T.decl_buffer((48,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            flag = T.alloc_buffer((1,), "uint32", scope="local")
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(full[32]), T.uint32(1))
                T.ptx.fence.mbarrier_init.release.cluster()
            tile[tx] = A[tx]
            T.ptx.fence.proxy.async_.shared__cta()
            T.tvm_storage_sync("shared")
            if part == 0:
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
                if tx == 0:
                    fence("d")
                    if wait:
                        T.cuda.wait_until(
                            flag[0], T.address_of(S[0]), flag[0] == T.uint32(1), ptx_type="u32"
                        )
                    fence("e")
                    if hazard == "raw":
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                            T.address_of(full[32]), T.uint32(BYTES)
                        )
                        T.ptx[LOAD_1D](
                            T.address_of(tile[0]),
                            T.address_of(W[0]),
                            T.uint32(BYTES),
                            T.address_of(full[32]),
                        )
                        T.cuda.mbarrier_wait(T.address_of(full[32]), 0)
                    else:
                        T.ptx[STORE_1D](T.address_of(W[0]), T.address_of(tile[0]), T.uint32(BYTES))
                        T.ptx.cp.async_.bulk.commit_group()
                        T.ptx["cp.async.bulk.wait_group.read"](0)

    inputs = {"A": np.arange(COUNT, dtype="float32"), "S": np.zeros(1, "uint32")}
    if hazard == "war":
        inputs["W"] = np.ones(COUNT, "float32")
    return Kernel(main, inputs, grid=2)
