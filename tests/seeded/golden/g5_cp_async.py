"""G5: the producer warp group copies with cp.async and signals `full` by mbarrier.arrive.noinc.

All 128 producer threads arrive, so `full` counts 128.  What cp.async wrote is generic-proxy data:
every consumer thread fences the async proxy after its wait and before the wgmma.
Mutations M35-M37.
"""

from __future__ import annotations

from tvm.script import tirx as T

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

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((TILE_M, num_k), "float16"),
        B: T.Buffer((TILE_N, num_k), "float16"),
        C: T.Buffer((TILE_M, TILE_N), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
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
            full = T.decl_buffer((word,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            empty = T.decl_buffer((word,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            acc = T.alloc_buffer((NUM_ACCUMULATORS,), "float32", scope="local")
            desc = T.alloc_buffer((2,), "uint64", scope="local")
            if tx == 0:
                init_ring(full, empty, ring, full_count, 2)
                T.ptx.fence.mbarrier_init.release.cluster()
            T.tvm_storage_sync("shared")
            if tx < 128:
                T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
                for k in T.serial(trips):
                    T.cuda.mbarrier_wait(
                        T.address_of(empty[ring.empty + k % stages]), ((k // stages) % 2) ^ 1
                    )
                    for i in T.serial(A_ELEMENTS // 8 // 128):
                        T.ptx[COPY_16B](
                            T.address_of(
                                sA[(k % stages) * A_ELEMENTS + swizzled(i * 16 + tx // 8, tx % 8)]
                            ),
                            T.address_of(
                                A[bx * TILE_M + i * 16 + tx // 8, k * TILE_K + tx % 8 * 8]
                            ),
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
                    T.cuda.mbarrier_wait(
                        T.address_of(full[ring.full + k % stages]), (k // stages) % 2
                    )
                    if m != "M37":
                        T.ptx.fence.proxy.async_.shared__cta()
                    multiply_stage(sA, sB, acc, desc, ring, k, group, k)
                    T.ptx.wgmma.wait_group.sync.aligned(0)
                    if lane == 0:
                        T.ptx.mbarrier.arrive.shared.b64(
                            T.address_of(empty[ring.empty + k % stages])
                        )
                store_fragment(C, acc, bx * TILE_M + group * 64, 0, lane)

    inputs = operands(TILE_M, TILE_N, num_k, seed)
    return Kernel(main, inputs, {"C": product(inputs)})
