"""G1 with a side copy: one slot, and per K step a row of factors that the producer warp copies.

The producer warp acquires the slot, starts the TMA loads, copies 32 factors with plain accesses and
meets both consumer groups at a named barrier; a consumer meets it after it has released the slot.
The barrier is reached from two sites, so it is the unaligned `barrier.sync` (N13).  M42 uses the
aligned `bar.sync`; M61 releases the slot only after the meeting, which closes a cycle.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F16, F32, U64, Local, Map, Shared, hand_threaded

from .common import (
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

    @hand_threaded(NUM_THREADS, smem=ring.num_bytes, min_blocks=1)
    def main(
        A: F16[TILE_M, num_k], B: F16[TILE_N, num_k], X: F32[trips, 32], C: F32[TILE_M, TILE_N],
        D: F32[256],
        a_map: Map("A", (num_k, TILE_M), (TILE_K, TILE_M), SWIZZLE_128B_MAP),
        b_map: Map("B", (num_k, TILE_N), (TILE_K, TILE_N), SWIZZLE_128B_MAP),
        bx, tx, sA: Shared[F16], sB: Shared[F16], sX: Shared[F32, ring.num_bytes // 4],
        full: Shared[U64], empty: Shared[U64], acc: Local[F32, NUM_ACCUMULATORS],
        desc: Local[U64, 2], seen: Local[F32],
    ):  # fmt: skip
        if tx == 0:
            # every consumer warp has read the factors and finished its multiply-adds
            ptx.init_mbarrier(full[ring.full], 1)
            ptx.init_mbarrier(empty[ring.empty], 8)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.tvm_storage_sync("shared")
        if tx < 128:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
            if tx < 32:
                for k in T.serial(trips):
                    if tx == 0:
                        load_stage(sA, sB, full, empty, a_map, b_map, ring, k, k, bx * TILE_M, 0)
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
                ptx.wait(full[ring.full], k % 2)
                multiply_stage(sA, sB, acc, desc, ring, k, group, k)
                T.ptx.wgmma.wait_group.sync.aligned(0)
                if m != "M61":
                    T.cuda.warp_sync()
                    if tx % 32 == 0:
                        ptx.arrive(empty[ring.empty])
                if k + 1 < trips:
                    meet()
                    seen[0] = seen[0] + sX[factors_at + tx % 32]
                if m == "M61":
                    T.cuda.warp_sync()
                    if tx % 32 == 0:
                        ptx.arrive(empty[ring.empty])
            store_fragment(C, acc, bx * TILE_M + group * 64, 0, lane)
            D[tx - 128] = seen[0]

    inputs = operands(TILE_M, TILE_N, num_k, seed)
    inputs["X"] = np.arange(trips * 32, dtype="float32").reshape(trips, 32)
    sums = np.tile(inputs["X"].sum(0, dtype="float64"), 8)
    return Kernel(main, inputs, {"C": product(inputs), "D": sums})
