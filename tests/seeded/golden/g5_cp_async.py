"""G5: the producer warp group copies with cp.async and signals `full` by mbarrier.arrive.noinc.

All 128 producer threads arrive, so `full` counts 128.  What cp.async wrote is generic-proxy data:
every consumer thread fences the async proxy after its wait and before the wgmma.
Mutations M35-M37.
"""

from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F16, F32, U64, Local, Shared, hand_threaded

from .common import (
    A_ELEMENTS,
    B_ELEMENTS,
    NUM_ACCUMULATORS,
    NUM_THREADS,
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

COPY_16B = "cp.async.cg.shared.global"


def build(mutation: str | None = None, *, stages: int = 2, trips: int = 3, seed: int = 0) -> Kernel:
    """Build the kernel for one 128x64 output tile and `trips` K steps; C is fp32."""
    m = mutation
    num_k = trips * TILE_K
    ring = Ring(stages)
    full_count = 1 if m == "M35" else 128

    def swizzled(row, chunk):  # element offset of a 16-byte chunk in a 128-byte row
        return row * TILE_K + T.bitwise_xor(chunk, row % 8) * 8

    @hand_threaded(NUM_THREADS, smem=ring.num_bytes, min_blocks=1)
    def main(
        A: F16[TILE_M, num_k], B: F16[TILE_N, num_k], C: F32[TILE_M, TILE_N],
        bx, tx, sA: Shared[F16], sB: Shared[F16], full: Shared[U64], empty: Shared[U64],
        acc: Local[F32, NUM_ACCUMULATORS], desc: Local[U64, 2],
    ):  # fmt: skip
        if tx == 0:
            init_ring(full, empty, ring, full_count, 2)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.tvm_storage_sync("shared")
        if tx < 128:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
            for k in T.serial(trips):
                ptx.wait(empty[ring.empty + k % stages], ((k // stages) % 2) ^ 1)
                for i in T.serial(A_ELEMENTS // 8 // 128):
                    T.ptx[COPY_16B](
                        T.address_of(
                            sA[(k % stages) * A_ELEMENTS + swizzled(i * 16 + tx // 8, tx % 8)]
                        ),
                        T.address_of(A[bx * TILE_M + i * 16 + tx // 8, k * TILE_K + tx % 8 * 8]),
                        16,
                    )
                for i in T.serial(B_ELEMENTS // 8 // 128):
                    T.ptx[COPY_16B](
                        T.address_of(
                            sB[
                                ring.b_start
                                + (k % stages) * B_ELEMENTS
                                + swizzled(i * 16 + tx // 8, tx % 8)
                            ]
                        ),
                        T.address_of(B[i * 16 + tx // 8, k * TILE_K + tx % 8 * 8]),
                        16,
                    )
                if m == "M36":
                    T.ptx["cp.async.mbarrier.arrive.shared.b64"](
                        T.address_of(full[ring.full + k % stages])
                    )
                else:
                    T.ptx["cp.async.mbarrier.arrive.noinc.shared.b64"](
                        T.address_of(full[ring.full + k % stages])
                    )
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)
            group = T.meta_var(tx // 128 - 1)
            lane = T.meta_var(tx % 128)
            for k in T.serial(trips):
                ptx.wait(full[ring.full + k % stages], (k // stages) % 2)
                if m != "M37":
                    T.ptx.fence.proxy.async_.shared__cta()
                multiply_stage(sA, sB, acc, desc, ring, k, group, k)
                T.ptx.wgmma.wait_group.sync.aligned(0)
                if lane == 0:
                    ptx.arrive(empty[ring.empty + k % stages])
            store_fragment(C, acc, bx * TILE_M + group * 64, 0, lane)

    inputs = operands(TILE_M, TILE_N, num_k, seed)
    return Kernel(main, inputs, {"C": product(inputs)})
