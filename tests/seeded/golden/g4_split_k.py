"""G4: split-K over two CTAs; the partial tiles meet in C by bulk reduction.

`order="free"`: C is zero at entry, both CTAs add with `cp.reduce.async.bulk` (N8).
`order="serial"`: a semaphore orders them; the first stores, the second adds.
Mutations M51 (free) and M49, M50, M52 (serial).
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F16, F32, U32, U64, Local, Map, Shared, hand_threaded

from .common import (
    NUM_ACCUMULATORS,
    NUM_THREADS,
    REDUCE_1D,
    SWIZZLE_128B_MAP,
    TILE_K,
    TILE_M,
    TILE_N,
    Kernel,
    Ring,
    consume_tile,
    init_ring,
    load_stage,
    operands,
    product,
)

SPLITS = 2
GROUP_ELEMENTS = 64 * TILE_N  # rows of one consumer group: contiguous in C, since C is TILE_N wide


def build(
    mutation: str | None = None,
    *,
    order: str = "free",
    stages: int = 2,
    trips: int = 2,
    seed: int = 0,
) -> Kernel:
    """Build the kernel for one 128x64 tile of C (fp32); `trips` K steps in each CTA."""
    m = mutation
    serial = order == "serial"
    num_k = SPLITS * trips * TILE_K
    ring = Ring(stages, extra_bytes=2 * GROUP_ELEMENTS * 4)
    staging = ring.staging // 4
    releasing_lane = 32 if m == "M50" else 0

    @hand_threaded(NUM_THREADS, grid=SPLITS, smem=ring.num_bytes, min_blocks=1)
    def main(
        A: F16[TILE_M, num_k], B: F16[TILE_N, num_k], C: F32[TILE_M, TILE_N], S: U32[2],
        a_map: Map("A", (num_k, TILE_M), (TILE_K, TILE_M), SWIZZLE_128B_MAP),
        b_map: Map("B", (num_k, TILE_N), (TILE_K, TILE_N), SWIZZLE_128B_MAP),
        bx, tx, sA: Shared[F16], sB: Shared[F16], sC: Shared[F32, ring.num_bytes // 4],
        full: Shared[U64], empty: Shared[U64], acc: Local[F32, NUM_ACCUMULATORS],
        desc: Local[U64, 2], turn: Local[U32],
    ):  # fmt: skip
        if tx == 0:
            init_ring(full, empty, ring, 1, 2)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.tvm_storage_sync("shared")
        if tx < 128:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
            if tx == 0:
                for k in T.serial(trips):
                    load_stage(sA, sB, full, empty, a_map, b_map, ring, k, bx * trips + k, 0, 0)
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)
            group = T.meta_var(tx // 128 - 1)
            lane = T.meta_var(tx % 128)
            if m == "M51":
                # the first CTA clears C, and nothing tells the second one
                if bx == 0:
                    for i in T.serial(NUM_ACCUMULATORS):
                        C[group * 64 + i * 2 + lane // 64, lane % 64] = T.float32(0)
            consume_tile(sA, sB, full, empty, acc, desc, ring, 0, trips, group, lane)
            for i in T.serial(NUM_ACCUMULATORS):
                sC[
                    staging
                    + group * GROUP_ELEMENTS
                    + (lane // 32 * 16 + i // 2 % 2 * 8 + lane % 32 // 4) * TILE_N
                    + i // 4 * 8
                    + lane % 4 * 2
                    + i % 2
                ] = acc[i]
            T.ptx.fence.proxy.async_.shared__cta()
            T.ptx.bar.sync(T.Cast("uint32", group + 1), T.uint32(128))
            if lane == 0:
                if serial:
                    if m != "M52":
                        T.cuda.wait_until(
                            turn[0],
                            T.address_of(S[group]),
                            turn[0] == T.Cast("uint32", bx),
                            ptx_type="u32",
                        )
                        T.ptx.fence.proxy.async_.global_()
                if serial and bx == 0:
                    ptx.store_bytes(
                        C[group * 64, 0], sC[staging + group * GROUP_ELEMENTS], GROUP_ELEMENTS * 4
                    )
                else:
                    T.ptx[REDUCE_1D](
                        T.address_of(C[group * 64, 0]),
                        T.address_of(sC[staging + group * GROUP_ELEMENTS]),
                        T.uint32(GROUP_ELEMENTS * 4),
                    )
                T.ptx.cp.async_.bulk.commit_group()
                if not serial or m == "M49":
                    T.ptx["cp.async.bulk.wait_group.read"](0)
                elif m != "M50":
                    T.ptx.cp.async_.bulk.wait_group(0)
            if serial:
                if m == "M50":
                    T.ptx.bar.sync(T.Cast("uint32", group + 1), T.uint32(128))
                if lane == releasing_lane:
                    T.ptx.red.release.gpu.global_.add.u32(T.address_of(S[group]), T.uint32(1))
                if m == "M50":
                    if lane == 0:
                        T.ptx["cp.async.bulk.wait_group.read"](0)

    inputs = operands(TILE_M, TILE_N, num_k, seed)
    inputs["S"] = np.zeros(2, "uint32")
    if not serial:
        inputs["C"] = np.zeros((TILE_M, TILE_N), "float32")
    expected = {"C": product(inputs)}
    if serial:
        expected["S"] = np.full(2, SPLITS, "float64")
    return Kernel(main, inputs, expected, grid=SPLITS)
