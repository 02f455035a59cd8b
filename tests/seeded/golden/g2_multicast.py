"""G2: cluster of two CTAs along m; each loads half of B and multicasts it to both.

A slot may be filled when the consumers of both CTAs have released it: `empty` counts four arrivals,
two of them remote (N14), at CTA scope, since only completed asynchronous reads stand before them
(N17).
The CTAs leave together.  Mutations M16, M44 and M46-M48.
"""

from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F16, F32, U32, U64, Local, Map, Shared, hand_threaded

from .common import (
    A_ELEMENTS,
    B_ELEMENTS,
    LOAD_2D,
    LOAD_2D_MULTICAST,
    NUM_ACCUMULATORS,
    NUM_CONSUMERS,
    NUM_THREADS,
    STAGE_BYTES,
    SWIZZLE_128B_MAP,
    TILE_K,
    TILE_M,
    TILE_N,
    Kernel,
    Ring,
    init_ring,
    multiply_stage,
    operands,
    product,
    store_fragment,
)

CLUSTER = 2
B_SHARE = TILE_N // CLUSTER  # rows of B that each CTA loads


def build(mutation: str | None = None, *, stages: int = 2, trips: int = 3, seed: int = 0) -> Kernel:
    """Build the kernel for two output tiles of 128x64 stacked along m; C is fp32."""
    m = mutation
    num_k, num_m = trips * TILE_K, CLUSTER * TILE_M
    ring = Ring(stages)
    empty_count = NUM_CONSUMERS if m == "M44" else NUM_CONSUMERS * CLUSTER

    @T.inline
    def release(empty, remote, slot, lane, rank):
        if m == "M44":
            if lane == 0:
                ptx.arrive(empty[ring.empty + slot])
        else:
            if lane < CLUSTER:
                ptx.map_to_rank(remote[0], empty[ring.empty + slot], lane)
                T.ptx.mbarrier.arrive.shared__cluster.b64(remote[0])

    @hand_threaded(NUM_THREADS, grid=CLUSTER, cluster=CLUSTER, smem=ring.num_bytes, min_blocks=1)
    def main(
        A: F16[num_m, num_k], B: F16[TILE_N, num_k], C: F32[num_m, TILE_N],
        a_map: Map("A", (num_k, num_m), (TILE_K, TILE_M), SWIZZLE_128B_MAP),
        b_map: Map("B", (num_k, TILE_N), (TILE_K, B_SHARE), SWIZZLE_128B_MAP),
        bx, rank, tx, sA: Shared[F16], sB: Shared[F16], full: Shared[U64], empty: Shared[U64],
        acc: Local[F32, NUM_ACCUMULATORS], desc: Local[U64, 2], remote: Local[U32],
    ):  # fmt: skip
        my_trips = T.meta_var(trips - rank if m == "M48" else trips)
        if tx == 0:
            init_ring(full, empty, ring, 1, empty_count)
            if m != "M16":
                T.ptx.fence.mbarrier_init.release.cluster()
        if m == "M16":
            T.tvm_storage_sync("shared")
        else:
            T.cuda.cluster_sync()
        if tx < 128:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
            if tx == 0:
                for k in T.serial(my_trips):
                    ptx.wait(empty[ring.empty + k % stages], ((k // stages) % 2) ^ 1)
                    if m == "M46":
                        if rank == 0:
                            ptx.expect_bytes(full[ring.full + k % stages], STAGE_BYTES)
                    else:
                        ptx.expect_bytes(full[ring.full + k % stages], STAGE_BYTES)
                    T.ptx[LOAD_2D](
                        T.address_of(sA[(k % stages) * A_ELEMENTS]),
                        T.address_of(a_map), k * TILE_K, bx * TILE_M,
                        T.address_of(full[ring.full + k % stages]),
                    )  # fmt: skip
                    T.ptx[LOAD_2D_MULTICAST](
                        T.address_of(
                            sB[
                                ring.b_start
                                + (k % stages) * B_ELEMENTS
                                + rank * (B_SHARE * TILE_K)
                            ]
                        ),
                        T.address_of(b_map), k * TILE_K, rank * B_SHARE,
                        T.address_of(full[ring.full + k % stages]),
                        T.uint16((1 << CLUSTER) - 1),
                    )  # fmt: skip
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)
            group = T.meta_var(tx // 128 - 1)
            lane = T.meta_var(tx % 128)
            for k in T.serial(my_trips):
                ptx.wait(full[ring.full + k % stages], (k // stages) % 2)
                multiply_stage(sA, sB, acc, desc, ring, k, group, k)
                T.ptx.wgmma.wait_group.sync.aligned(0)
                release(empty, remote, k % stages, lane, rank)
            store_fragment(C, acc, bx * TILE_M + group * 64, 0, lane)
        if m != "M47":
            T.cuda.cluster_sync()

    inputs = operands(num_m, TILE_N, num_k, seed)
    return Kernel(main, inputs, {"C": product(inputs)}, grid=CLUSTER)
