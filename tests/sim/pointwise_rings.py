"""C = A + B through a TMA ring whose consumers are plain warps, with and without a producer warp.

`without` leaves out one synchronising instruction by name.
"""

# ruff: noqa: SIM102 -- a condition on `without` is decided by the script parser, one on a thread by
# the kernel; nesting keeps them apart

from __future__ import annotations

import functools

import numpy as np
from tvm.script import tirx as T

from tvm_hopper.simulation import Program

from .kernels import ENCODE, lower

TILE = 256  # elements of a tile: one a consumer thread
LOAD = "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes"


def inputs(trips: int = 6) -> dict[str, np.ndarray]:
    """Return integers, so that sums are exact."""
    rng = np.random.default_rng(trips)
    return {name: rng.integers(-99, 99, trips * TILE).astype("float32") for name in "AB"}


@T.inline
def init(full, empty, at, slots, warps, extra):
    for s in T.serial(slots):
        T.ptx.mbarrier.init.shared.b64(T.address_of(full[at + s]), T.uint32(1))
        T.ptx.mbarrier.init.shared.b64(T.address_of(empty[at + slots + s]), T.uint32(warps + extra))
    T.ptx.fence.mbarrier_init.release.cluster()


@T.inline
def load(tile, full, a_map, b_map, at, slots, it):
    T.ptx.mbarrier.arrive.expect_tx.shared.b64(
        T.address_of(full[at + it % slots]), T.uint32(TILE * 8)
    )
    T.ptx[LOAD](
        T.address_of(tile[it % slots * 2 * TILE]),
        T.address_of(a_map),
        it * TILE,
        T.address_of(full[at + it % slots]),
    )
    T.ptx[LOAD](
        T.address_of(tile[it % slots * 2 * TILE + TILE]),
        T.address_of(b_map),
        it * TILE,
        T.address_of(full[at + it % slots]),
    )


@functools.cache
def with_producer(without: str = "", slots: int = 4, trips: int = 6, warps: int = 8) -> Program:
    """One producer warp, `warps` consumer warps.

    `without`: init_barrier, empty_wait, full_wait, one_full_wait, fence, one_fence, syncwarp,
    arrive, one_arrive. `one_...`: of one warp alone. Wrong otherwise: two_arrives (of one warp),
    count, empty_parity, full_parity, lane_fence (by one lane of each warp).
    """
    w, at, total = without, slots * TILE, trips * TILE
    each = -(-TILE // (32 * warps))
    extra = {"count": -1}.get(w, 0)

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((total,), "float32"),
        B: T.Buffer((total,), "float32"),
        C: T.Buffer((total,), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        a_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(ENCODE, a_map, "float32", 1, A.data, total, TILE, 1, 0, 0, 2, 0)
        b_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(ENCODE, b_map, "float32", 1, B.data, total, TILE, 1, 0, 0, 2, 0)
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 32 + 32 * warps)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((at * 8 + 128,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((at * 2 + 32,), "float32", data=smem.data, scope="shared.dyn")
            full = T.decl_buffer((at + 16,), "uint64", data=smem.data, scope="shared.dyn")
            empty = T.decl_buffer((at + 16,), "uint64", data=smem.data, scope="shared.dyn")
            if tx == 0:
                init(full, empty, at, slots, warps, extra)
            if w != "init_barrier":
                T.tvm_storage_sync("shared")
            if tx < 32:
                if tx == 0:
                    for it in T.serial(trips):
                        if w != "empty_wait":
                            T.cuda.mbarrier_wait(
                                T.address_of(empty[at + slots + it % slots]),
                                it // slots % 2 if w == "empty_parity" else it // slots % 2 ^ 1,
                            )
                        load(tile, full, a_map, b_map, at, slots, it)
            else:
                me = T.meta_var(tx - 32)
                for it in T.serial(trips):
                    if w == "one_full_wait":
                        if tx // 32 != 3:
                            T.cuda.mbarrier_wait(
                                T.address_of(full[at + it % slots]), it // slots % 2
                            )
                    elif w != "full_wait":
                        T.cuda.mbarrier_wait(
                            T.address_of(full[at + it % slots]),
                            0 if w == "full_parity" else it // slots % 2,
                        )
                    for i in T.serial(each):
                        if i * 32 * warps + me < TILE:
                            C[it * TILE + i * 32 * warps + me] = (
                                tile[it % slots * 2 * TILE + i * 32 * warps + me]
                                + tile[it % slots * 2 * TILE + TILE + i * 32 * warps + me]
                            )
                    if w == "one_fence":
                        if tx // 32 != 3:
                            T.ptx.fence.proxy.async_.shared__cta()
                    elif w == "lane_fence":
                        if tx % 32 == 0:
                            T.ptx.fence.proxy.async_.shared__cta()
                    elif w != "fence":
                        T.ptx.fence.proxy.async_.shared__cta()
                    if w != "syncwarp":
                        T.cuda.warp_sync()
                    if tx % 32 == 0:
                        if w == "one_arrive":
                            if tx // 32 != 3:
                                T.ptx.mbarrier.arrive.shared.b64(
                                    T.address_of(empty[at + slots + it % slots])
                                )
                        elif w != "arrive":
                            T.ptx.mbarrier.arrive.shared.b64(
                                T.address_of(empty[at + slots + it % slots])
                            )
                        if w == "two_arrives":
                            if tx // 32 == 3:
                                T.ptx.mbarrier.arrive.shared.b64(
                                    T.address_of(empty[at + slots + it % slots])
                                )

    return lower(main)


@functools.cache
def without_producer(without: str = "", slots: int = 4, trips: int = 6) -> Program:
    """256 threads; thread 0 loads `slots - 1` ahead, all wait, compute, and meet each iteration.

    `without`: init_barrier, wait, one_wait, fence, one_fence, barrier.
    """
    w, at, total = without, slots * TILE, trips * TILE

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((total,), "float32"),
        B: T.Buffer((total,), "float32"),
        C: T.Buffer((total,), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        a_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(ENCODE, a_map, "float32", 1, A.data, total, TILE, 1, 0, 0, 2, 0)
        b_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(ENCODE, b_map, "float32", 1, B.data, total, TILE, 1, 0, 0, 2, 0)
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", TILE)
        with T.attr(T.int32(0), "hand_threaded", 1):
            smem = T.alloc_buffer((at * 8 + 128,), "uint8", scope="shared.dyn", align=1024)
            tile = T.decl_buffer((at * 2 + 32,), "float32", data=smem.data, scope="shared.dyn")
            full = T.decl_buffer((at + 16,), "uint64", data=smem.data, scope="shared.dyn")
            if tx == 0:
                for s in T.serial(slots):
                    T.ptx.mbarrier.init.shared.b64(T.address_of(full[at + s]), T.uint32(1))
                T.ptx.fence.mbarrier_init.release.cluster()
            if w != "init_barrier":
                T.tvm_storage_sync("shared")
            if tx == 0:
                for s in T.serial(slots - 1):
                    load(tile, full, a_map, b_map, at, slots, s)
            for it in T.serial(trips):
                if tx == 0:
                    if it + slots - 1 < trips:
                        load(tile, full, a_map, b_map, at, slots, it + slots - 1)
                if w == "one_wait":
                    if tx // 32 != 3:
                        T.cuda.mbarrier_wait(T.address_of(full[at + it % slots]), it // slots % 2)
                elif w != "wait":
                    T.cuda.mbarrier_wait(T.address_of(full[at + it % slots]), it // slots % 2)
                C[it * TILE + tx] = (
                    tile[it % slots * 2 * TILE + tx] + tile[it % slots * 2 * TILE + TILE + tx]
                )
                if w == "one_fence":
                    if tx // 32 != 3:
                        T.ptx.fence.proxy.async_.shared__cta()
                elif w != "fence":
                    T.ptx.fence.proxy.async_.shared__cta()
                if w != "barrier":
                    T.tvm_storage_sync("shared")

    return lower(main)
