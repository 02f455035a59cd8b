"""G1 with a side copy: one slot, and per K step a row of factors that the producer warp copies.

The producer warp acquires the slot, starts the TMA loads, copies 32 factors with plain accesses and
meets both consumer groups at a named barrier; a consumer meets it after it has released the slot.
The barrier is reached from two sites, so it is the unaligned `barrier.sync` (N13).  M42 uses the
aligned `bar.sync`; M61 releases the slot only after the meeting, which closes a cycle.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from .common import (
    ENCODE,
    NUM_ACCUMULATORS,
    NUM_THREADS,
    SWIZZLE_128B_MAP,
    TILE_K,
    TILE_M,
    TILE_N,
    Kernel,
    Ring,
    load_stage,
    multiply_stage,
    operands,
    product,
    store_fragment,
)

MEETING, PARTICIPANTS = 1, 32 + 256


def build(mutation: str | None = None, *, trips: int = 3, seed: int = 0) -> Kernel:
    """Build it: D[thread] sums the factors that consumer thread `thread` has seen."""
    m = mutation
    num_k = trips * TILE_K
    ring = Ring(1, extra_bytes=128)
    factors_at = ring.staging // 4

    @T.inline
    def meet():
        if m == "M42":
            T.ptx.bar.sync(T.uint32(MEETING), T.uint32(PARTICIPANTS))
        else:
            T.ptx.barrier.sync(T.uint32(MEETING), T.uint32(PARTICIPANTS))

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((TILE_M, num_k), "float16"),
        B: T.Buffer((TILE_N, num_k), "float16"),
        X: T.Buffer((trips, 32), "float32"),
        C: T.Buffer((TILE_M, TILE_N), "float32"),
        D: T.Buffer((256,), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        a_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(
            ENCODE, a_map, "float16", 2, A.data, num_k, TILE_M, num_k * 2, TILE_K, TILE_M,
            1, 1, 0, SWIZZLE_128B_MAP, 2, 0,
        )  # fmt: skip
        b_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(
            ENCODE, b_map, "float16", 2, B.data, num_k, TILE_N, num_k * 2, TILE_K, TILE_N,
            1, 1, 0, SWIZZLE_128B_MAP, 2, 0,
        )  # fmt: skip
        bx = T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", NUM_THREADS)
        with (
            T.attr(T.int32(0), "tirx.launch_bounds_min_blocks_per_sm", 1),
            T.attr(T.int32(0), "hand_threaded", 1),
        ):
            dyn_smem = T.alloc_buffer((ring.num_bytes,), "uint8", scope="shared.dyn", align=1024)
            half, word = T.meta_var(ring.num_bytes // 2), T.meta_var(ring.num_bytes // 8)
            sA = T.decl_buffer((half,), "float16", data=dyn_smem.data, scope="shared.dyn")
            sB = T.decl_buffer((half,), "float16", data=dyn_smem.data, scope="shared.dyn")
            sX = T.decl_buffer((half // 2,), "float32", data=dyn_smem.data, scope="shared.dyn")
            full = T.decl_buffer((word,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            empty = T.decl_buffer((word,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            acc = T.alloc_buffer((NUM_ACCUMULATORS,), "float32", scope="local")
            desc = T.alloc_buffer((2,), "uint64", scope="local")
            seen = T.alloc_buffer((1,), "float32", scope="local")
            if tx == 0:
                # every consumer warp has read the factors and finished its multiply-adds
                T.ptx.mbarrier.init.shared.b64(T.address_of(full[ring.full]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(T.address_of(empty[ring.empty]), T.uint32(8))
                T.ptx.fence.mbarrier_init.release.cluster()
            T.tvm_storage_sync("shared")
            if tx < 128:
                T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
                if tx < 32:
                    for k in T.serial(trips):
                        if tx == 0:
                            load_stage(
                                sA, sB, full, empty, a_map, b_map, ring, k, k, bx * TILE_M, 0
                            )
                        T.cuda.warp_sync()
                        sX[factors_at + tx] = X[k, tx]
                        meet()
            else:
                T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)
                group = T.meta_var(tx // 128 - 1)
                lane = T.meta_var(tx % 128)
                meet()
                seen[0] = sX[factors_at + tx % 32]
                for k in T.serial(trips):
                    T.cuda.mbarrier_wait(T.address_of(full[ring.full]), k % 2)
                    multiply_stage(sA, sB, acc, desc, ring, k, group, k)
                    T.ptx.wgmma.wait_group.sync.aligned(0)
                    if m != "M61":
                        T.cuda.warp_sync()
                        if tx % 32 == 0:
                            T.ptx.mbarrier.arrive.shared.b64(T.address_of(empty[ring.empty]))
                    if k + 1 < trips:
                        meet()
                        seen[0] = seen[0] + sX[factors_at + tx % 32]
                    if m == "M61":
                        T.cuda.warp_sync()
                        if tx % 32 == 0:
                            T.ptx.mbarrier.arrive.shared.b64(T.address_of(empty[ring.empty]))
                store_fragment(C, acc, bx * TILE_M + group * 64, 0, lane)
                D[tx - 128] = seen[0]

    inputs = operands(TILE_M, TILE_N, num_k, seed)
    inputs["X"] = np.arange(trips * 32, dtype="float32").reshape(trips, 32)
    sums = np.tile(inputs["X"].sum(0, dtype="float64"), 8)
    return Kernel(main, inputs, {"C": product(inputs), "D": sums})
