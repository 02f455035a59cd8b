"""G2: cluster of two CTAs along m; each loads half of B and multicasts it to both.

A slot may be filled when the consumers of both CTAs have released it: `empty` counts four arrivals,
two of them remote (N14), at CTA scope, since only completed asynchronous reads stand before them
(N17).
The CTAs leave together.  Mutations M16, M44 and M46-M48.
"""

from tvm.script import tirx as T

from tests.sim import ptx

from .common import (
    A_ELEMENTS,
    B_ELEMENTS,
    ENCODE,
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

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((num_m, num_k), "float16"),
        B: T.Buffer((TILE_N, num_k), "float16"),
        C: T.Buffer((num_m, TILE_N), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        a_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(
            ENCODE, a_map, "float16", 2, A.data, num_k, num_m, num_k * 2, TILE_K, TILE_M,
            1, 1, 0, SWIZZLE_128B_MAP, 2, 0,
        )  # fmt: skip
        b_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(
            ENCODE, b_map, "float16", 2, B.data, num_k, TILE_N, num_k * 2, TILE_K, B_SHARE,
            1, 1, 0, SWIZZLE_128B_MAP, 2, 0,
        )  # fmt: skip
        bx = T.launch_thread("blockIdx.x", CLUSTER)
        rank = T.launch_thread("clusterCtaIdx.x", CLUSTER)
        tx = T.launch_thread("threadIdx.x", NUM_THREADS)
        with (
            T.attr(T.int32(0), "tirx.launch_bounds_min_blocks_per_sm", 1),
            T.attr(T.int32(0), "hand_threaded", 1),
        ):
            dyn_smem = T.alloc_buffer((ring.num_bytes,), "uint8", scope="shared.dyn", align=1024)
            half, word = T.meta_var(ring.num_bytes // 2), T.meta_var(ring.num_bytes // 8)
            sA = T.decl_buffer((half,), "float16", data=dyn_smem.data, scope="shared.dyn")
            sB = T.decl_buffer((half,), "float16", data=dyn_smem.data, scope="shared.dyn")
            full = T.decl_buffer((word,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            empty = T.decl_buffer((word,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            acc = T.alloc_buffer((NUM_ACCUMULATORS,), "float32", scope="local")
            desc = T.alloc_buffer((2,), "uint64", scope="local")
            remote = T.alloc_buffer((1,), "uint32", scope="local")
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
