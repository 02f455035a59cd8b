"""Small right kernels, one legal but suspicious thing each: controls that must stay clean."""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from .common import LOAD_1D, Kernel

WARPS = 2
THREADS = 32 * WARPS
ROW = 128  # elements


def different_phases(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """N9: two warps wait on one barrier, each for another phase, one of them late."""

    @T.prim_func(s_tir=True)
    def main(Y: T.Buffer((2,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 96)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((256,), "uint8", scope="shared.dyn", align=1024)
            slot = T.decl_buffer((64,), "float32", data=dyn_smem.data, scope="shared.dyn")
            turn = T.decl_buffer((32,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(turn[16]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(T.address_of(turn[17]), T.uint32(1))
                T.ptx.fence.mbarrier_init.release.cluster()
            T.tvm_storage_sync("shared")
            if tx == 0:
                slot[0] = T.float32(1)
                T.ptx.mbarrier.arrive.shared.b64(T.address_of(turn[16]))
                # the second phase begins when the first one has been seen
                T.cuda.mbarrier_wait(T.address_of(turn[17]), 0)
                slot[1] = T.float32(2)
                T.ptx.mbarrier.arrive.shared.b64(T.address_of(turn[16]))
            if tx == 32:
                T.cuda.mbarrier_wait(T.address_of(turn[16]), 0)
                T.ptx.mbarrier.arrive.shared.b64(T.address_of(turn[17]))
                Y[0] = slot[0]
            if tx == 64:
                T.cuda.mbarrier_wait(T.address_of(turn[17]), 0)
                T.cuda.mbarrier_wait(T.address_of(turn[16]), 1)
                Y[1] = slot[1]

    return Kernel(main, {}, {"Y": np.array([1.0, 2.0])})


def all_wait(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """N10: every thread waits while the copy is in flight, which is no deadlock."""

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((ROW,), "float32"), Y: T.Buffer((ROW,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", ROW)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((640,), "uint8", scope="shared.dyn", align=1024)
            row = T.decl_buffer((160,), "float32", data=dyn_smem.data, scope="shared.dyn")
            full = T.decl_buffer((80,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(full[64]), T.uint32(1))
                T.ptx.fence.mbarrier_init.release.cluster()
            T.tvm_storage_sync("shared")
            if tx == 0:
                T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                    T.address_of(full[64]), T.uint32(ROW * 4)
                )
                T.ptx[LOAD_1D](
                    T.address_of(row[0]), T.address_of(X[0]), T.uint32(ROW * 4),
                    T.address_of(full[64]),
                )  # fmt: skip
            T.cuda.mbarrier_wait(T.address_of(full[64]), 0)
            Y[tx] = row[tx]

    x = np.random.default_rng(seed).integers(-8, 9, ROW).astype("float32")
    return Kernel(main, {"X": x}, {"Y": x.astype("float64")})


def arrive_drop(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """N11: a warp leaves a barrier for good by arrive_drop; later phases need one arrival less."""

    @T.prim_func(s_tir=True)
    def main(Y: T.Buffer((4,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 96)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((256,), "uint8", scope="shared.dyn", align=1024)
            slot = T.decl_buffer((64,), "float32", data=dyn_smem.data, scope="shared.dyn")
            bars = T.decl_buffer((32,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            if tx == 0:
                T.ptx.mbarrier.init.shared.b64(T.address_of(bars[16]), T.uint32(2))
                T.ptx.mbarrier.init.shared.b64(T.address_of(bars[17]), T.uint32(1))
                T.ptx.fence.mbarrier_init.release.cluster()
            T.tvm_storage_sync("shared")
            if tx == 0:
                for k in T.serial(4):
                    if k > 0:
                        T.cuda.mbarrier_wait(T.address_of(bars[17]), (k + 1) % 2)
                    slot[k] = T.Cast("float32", k)
                    T.ptx.mbarrier.arrive.shared.b64(T.address_of(bars[16]))
            if tx == 32:
                T.ptx.mbarrier.arrive_drop.shared.b64(T.address_of(bars[16]))
            if tx == 64:
                for k in T.serial(4):
                    T.cuda.mbarrier_wait(T.address_of(bars[16]), k % 2)
                    Y[k] = slot[k]
                    T.ptx.mbarrier.arrive.shared.b64(T.address_of(bars[17]))

    return Kernel(main, {}, {"Y": np.arange(4.0)})


def fence_by_issuer(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """N6: the thread that issues the store fences after the barrier, the writers do not."""

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((ROW,), "float32"), Y: T.Buffer((ROW,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", ROW)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((512,), "uint8", scope="shared.dyn", align=1024)
            row = T.decl_buffer((ROW,), "float32", data=dyn_smem.data, scope="shared.dyn")
            row[tx] = X[tx]
            T.tvm_storage_sync("shared")
            if tx == 0:
                T.ptx.fence.proxy.async_.shared__cta()
                T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
                    T.address_of(Y[0]), T.address_of(row[0]), T.uint32(ROW * 4)
                )
                T.ptx.cp.async_.bulk.commit_group()
                T.ptx["cp.async.bulk.wait_group.read"](0)

    x = np.random.default_rng(seed).integers(-8, 9, ROW).astype("float32")
    return Kernel(main, {"X": x}, {"Y": x.astype("float64")})
