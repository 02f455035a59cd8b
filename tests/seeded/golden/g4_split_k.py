"""G4: split-K over two CTAs; the partial tiles meet in C by bulk reduction.

`order="free"`: C is zero at entry, both CTAs add with `cp.reduce.async.bulk` (N8).
`order="serial"`: a semaphore orders them; the first stores, the second adds.
Mutations M51 (free) and M49, M50, M52 (serial).
"""

# ruff: noqa: SIM102 -- a condition on the mutation is decided by the script parser, one on a
# thread by the kernel; nesting keeps them apart

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from .common import (
    ENCODE,
    NUM_ACCUMULATORS,
    NUM_THREADS,
    REDUCE_1D,
    STORE_1D,
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

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((TILE_M, num_k), "float16"),
        B: T.Buffer((TILE_N, num_k), "float16"),
        C: T.Buffer((TILE_M, TILE_N), "float32"),
        S: T.Buffer((2,), "uint32"),
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
        split = T.launch_thread("blockIdx.x", SPLITS)
        tx = T.launch_thread("threadIdx.x", NUM_THREADS)
        with (
            T.attr(T.int32(0), "tirx.launch_bounds_min_blocks_per_sm", 1),
            T.attr(T.int32(0), "hand_threaded", 1),
        ):
            dyn_smem = T.alloc_buffer((ring.num_bytes,), "uint8", scope="shared.dyn", align=1024)
            half, word = T.meta_var(ring.num_bytes // 2), T.meta_var(ring.num_bytes // 8)
            sA = T.decl_buffer((half,), "float16", data=dyn_smem.data, scope="shared.dyn")
            sB = T.decl_buffer((half,), "float16", data=dyn_smem.data, scope="shared.dyn")
            sC = T.decl_buffer((half // 2,), "float32", data=dyn_smem.data, scope="shared.dyn")
            full = T.decl_buffer((word,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            empty = T.decl_buffer((word,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            acc = T.alloc_buffer((NUM_ACCUMULATORS,), "float32", scope="local")
            desc = T.alloc_buffer((2,), "uint64", scope="local")
            turn = T.alloc_buffer((1,), "uint32", scope="local")
            if tx == 0:
                init_ring(full, empty, ring, 1, 2)
                T.ptx.fence.mbarrier_init.release.cluster()
            T.tvm_storage_sync("shared")
            if tx < 128:
                T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
                if tx == 0:
                    for k in T.serial(trips):
                        load_stage(
                            sA, sB, full, empty, a_map, b_map, ring, k, split * trips + k, 0, 0
                        )
            else:
                T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)
                group = T.meta_var(tx // 128 - 1)
                lane = T.meta_var(tx % 128)
                if m == "M51":
                    # the first CTA clears C, and nothing tells the second one
                    if split == 0:
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
                                turn[0] == T.Cast("uint32", split),
                                ptx_type="u32",
                            )
                            T.ptx.fence.proxy.async_.global_()
                    if serial and split == 0:
                        T.ptx[STORE_1D](
                            T.address_of(C[group * 64, 0]),
                            T.address_of(sC[staging + group * GROUP_ELEMENTS]),
                            T.uint32(GROUP_ELEMENTS * 4),
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
