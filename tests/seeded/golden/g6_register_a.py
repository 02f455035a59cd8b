"""G6: wgmma with A in registers; the fragments come from shared memory by ldmatrix.

The slot's A half is read through the generic proxy and overwritten by TMA, so every warp fences the
async proxy after its ldmatrix and arrives itself (`empty` counts 8).  Mutations M23 and M33.
"""

from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F16, F32, U32, U64, Local, Map, Shared, hand_threaded

from .common import (
    A_ELEMENTS,
    B_ELEMENTS,
    LDMATRIX,
    NUM_ACCUMULATORS,
    NUM_THREADS,
    SWIZZLE_128B_MAP,
    TILE_K,
    TILE_M,
    TILE_N,
    Kernel,
    Ring,
    init_ring,
    load_stage,
    operands,
    product,
    store_fragment,
)

MMA_RS = f"wgmma.mma_async.sync.aligned.m64n{TILE_N}k16.f32.f16.f16"
NUM_STEPS = TILE_K // 16


def build(mutation: str | None = None, *, stages: int = 2, trips: int = 3, seed: int = 0) -> Kernel:
    """Build the kernel for one 128x64 output tile and `trips` K steps; C is fp32."""
    m = mutation
    num_k = trips * TILE_K
    ring = Ring(stages)

    @T.inline
    def load_fragment(sA, frag, slot, kk, tx, group):
        # lane l addresses row l % 16 of its warp's 16 rows, 16-byte chunk 2 kk + l // 16
        T.ptx[LDMATRIX](
            frag[kk * 4],
            frag[kk * 4 + 1],
            frag[kk * 4 + 2],
            frag[kk * 4 + 3],
            T.address_of(
                sA[
                    slot * A_ELEMENTS
                    + (group * 64 + tx % 128 // 32 * 16 + tx % 16) * TILE_K
                    + T.bitwise_xor(kk * 2 + tx % 32 // 16, tx % 8) * 8
                ]
            ),
        )

    @hand_threaded(NUM_THREADS, smem=ring.num_bytes, min_blocks=1)
    def main(
        A: F16[TILE_M, num_k], B: F16[TILE_N, num_k], C: F32[TILE_M, TILE_N],
        a_map: Map("A", (num_k, TILE_M), (TILE_K, TILE_M), SWIZZLE_128B_MAP),
        b_map: Map("B", (num_k, TILE_N), (TILE_K, TILE_N), SWIZZLE_128B_MAP),
        bx, tx, sA: Shared[F16], sB: Shared[F16], full: Shared[U64], empty: Shared[U64],
        acc: Local[F32, NUM_ACCUMULATORS], frag: Local[U32, 4 * NUM_STEPS], desc: Local[U64],
    ):  # fmt: skip
        if tx == 0:
            init_ring(full, empty, ring, 1, 8)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.tvm_storage_sync("shared")
        if tx < 128:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
            if tx == 0:
                for k in T.serial(trips):
                    load_stage(sA, sB, full, empty, a_map, b_map, ring, k, k, bx * TILE_M, 0)
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)
            group = T.meta_var(tx // 128 - 1)
            lane = T.meta_var(tx % 128)
            for k in T.serial(trips):
                ptx.wait(full[ring.full + k % stages], (k // stages) % 2)
                for kk in T.unroll(NUM_STEPS):
                    load_fragment(sA, frag, k % stages, kk, tx, group)
                if m != "M33":
                    T.ptx.fence.proxy.async_.shared__cta()
                T.ptx.wgmma.fence.sync.aligned()
                T.cuda.wgmma.encode_matrix_descriptor(
                    T.address_of(desc[0]),
                    T.address_of(sB[ring.b_start + (k % stages) * B_ELEMENTS]),
                    1, 64, 3,
                )  # fmt: skip
                for kk in T.unroll(NUM_STEPS):
                    T.ptx[MMA_RS](
                        *[acc[i] for i in range(NUM_ACCUMULATORS)],
                        *[frag[kk * 4 + i] for i in range(4)],
                        desc[0] + T.uint64(kk * 2),
                        (k > 0) if kk == 0 else T.bool(True), 1, 1, 0,
                    )  # fmt: skip
                T.ptx.wgmma.commit_group.sync.aligned()
                if m == "M23":
                    load_fragment(sA, frag, k % stages, 0, tx, group)
                T.ptx.wgmma.wait_group.sync.aligned(0)
                T.cuda.warp_sync()
                if tx % 32 == 0:
                    ptx.arrive(empty[ring.empty + k % stages])
            store_fragment(C, acc, bx * TILE_M + group * 64, 0, lane)

    inputs = operands(TILE_M, TILE_N, num_k, seed)
    return Kernel(main, inputs, {"C": product(inputs)})
