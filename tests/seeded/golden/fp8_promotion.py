"""An fp8 GEMM with promotion: four wgmma of k32 into one accumulator, then scaled into another.

A and B are K-major, 128 fp8 numbers (128 bytes) of each in a slot, zeros beyond the K tail.  The
tensor core sums one K step from zero; the sum times the scales of both tiles is added to float32
registers before the next step begins.  Mutations F01 to F08.
"""

import ml_dtypes
import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U8, U64, Elements, Local, Map, Shared, hand_threaded

from .common import LOAD_2D, NUM_ACCUMULATORS, NUM_THREADS, SWIZZLE_128B_MAP, TILE_M, TILE_N, Kernel

TILE_K = 128  # fp8 elements, and bytes
A_BYTES, B_BYTES = TILE_M * TILE_K, TILE_N * TILE_K
SHORT = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def build(
    mutation: str | None = None,
    *,
    a_type: str = "float8_e4m3fn",
    m: int = 88,
    n: int = 52,
    k: int = 336,
    stages: int = 2,
    seed: int = 0,
) -> Kernel:
    """Build the kernel for C (m, n) = sum over K steps of SA SB (A B^T), k a multiple of 16.

    A (m, k) is `a_type`, B (n, k) e4m3; SA (tiles of 128 rows, K steps) and SB (tiles of 64
    columns, K steps) are fp32, as is C.
    """
    bug = mutation
    trips = (k + TILE_K - 1) // TILE_K
    tiles_m, tiles_n = (m + TILE_M - 1) // TILE_M, (n + TILE_N - 1) // TILE_N
    b_start = stages * A_BYTES
    full_at = (b_start + stages * B_BYTES) // 8
    empty_at = full_at + stages
    num_bytes = (8 * (empty_at + stages) + 127) // 128 * 128
    loaded = (2 if bug == "F05" else 1) * (A_BYTES + B_BYTES)
    mma = f"wgmma.mma_async.sync.aligned.m64n{TILE_N}k32.f32.{SHORT[a_type]}.e4m3"
    advance = 1 if bug == "F03" else 2  # of a descriptor, in 16 bytes

    @T.inline
    def multiply(sA, sB, partial, desc, step, group):
        if bug != "F04" or step == 0:
            T.ptx.wgmma.fence.sync.aligned()
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(desc[0]),
            T.address_of(sA[step % stages * A_BYTES + group * 64 * TILE_K]),
            1, 64, 3,
        )  # fmt: skip
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(desc[1]), T.address_of(sB[b_start + step % stages * B_BYTES]), 1, 64, 3
        )
        for kk in T.unroll(TILE_K // 32):
            T.ptx[mma](
                *[partial[i] for i in range(NUM_ACCUMULATORS)],
                desc[0] + T.uint64(kk * advance),
                desc[1] + T.uint64(kk * advance),
                # F02: cleared once, as if nothing had been taken out in between
                T.bool(True) if kk > 0 else (step > 0 if bug == "F02" else T.bool(False)),
                1, 1,
            )  # fmt: skip
        T.ptx.wgmma.commit_group.sync.aligned()

    @T.inline
    def promote(partial, total, scale):
        for i in T.unroll(NUM_ACCUMULATORS):
            total[i] = total[i] + partial[i] * scale[0]

    @hand_threaded(NUM_THREADS, grid=(tiles_n, tiles_m), smem=num_bytes, min_blocks=1)
    def main(
        A: Elements(a_type)[m, k], B: Elements("float8_e4m3fn")[n, k], SA: F32[tiles_m, trips],
        SB: F32[tiles_n, trips], C: F32[m, n],
        a_map: Map("A", (k, m), (TILE_K, TILE_M), SWIZZLE_128B_MAP, dtype="uint8"),
        b_map: Map("B", (k, n), (TILE_K, TILE_N), SWIZZLE_128B_MAP, dtype="uint8"),
        bx, by, tx, sA: Shared[U8], sB: Shared[U8], barriers: Shared[U64],
        partial: Local[F32, NUM_ACCUMULATORS], total: Local[F32, NUM_ACCUMULATORS],
        scale: Local[F32], desc: Local[U64, 2],
    ):  # fmt: skip
        if tx == 0:
            for s in T.serial(stages):
                ptx.init_mbarrier(barriers[full_at + s], 1)
                ptx.init_mbarrier(barriers[empty_at + s], 2)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.tvm_storage_sync("shared")
        if tx < 128:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
            if tx == 0:
                for step in T.serial(trips):
                    filled = T.meta_var(T.address_of(barriers[full_at + step % stages]))
                    ptx.wait(barriers[empty_at + step % stages], (step // stages % 2) ^ 1)
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(filled, T.uint32(loaded))
                    T.ptx[LOAD_2D](
                        T.address_of(sA[step % stages * A_BYTES]),
                        T.address_of(a_map), step * TILE_K, by * TILE_M, filled,
                    )  # fmt: skip
                    T.ptx[LOAD_2D](
                        T.address_of(sB[b_start + step % stages * B_BYTES]),
                        T.address_of(b_map), step * TILE_K, bx * TILE_N, filled,
                    )  # fmt: skip
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)
            group = T.meta_var(tx // 128 - 1)
            lane = T.meta_var(tx % 128)
            for i in T.unroll(NUM_ACCUMULATORS):
                total[i] = T.float32(0)
            for step in T.serial(trips):
                released = T.meta_var(T.address_of(barriers[empty_at + step % stages]))
                if bug == "F07":  # the scales of the step that is loaded, not of this one
                    scale[0] = (
                        SA[by, T.min(step + 1, trips - 1)] * SB[bx, T.min(step + 1, trips - 1)]
                    )
                else:
                    scale[0] = SA[by, step] * SB[bx, step]
                ptx.wait(barriers[full_at + step % stages], step // stages % 2)
                multiply(sA, sB, partial, desc, step, group)
                if bug == "F01":
                    promote(partial, total, scale)
                if bug == "F06":
                    if lane == 0:
                        T.ptx.mbarrier.arrive.shared.b64(released)
                if bug == "F08":
                    T.ptx.wgmma.wait_group.sync.aligned(1)
                else:
                    T.ptx.wgmma.wait_group.sync.aligned(0)
                if bug != "F06":
                    if lane == 0:
                        T.ptx.mbarrier.arrive.shared.b64(released)
                if bug != "F01":
                    promote(partial, total, scale)
            for i in T.serial(NUM_ACCUMULATORS):
                c_row = T.meta_var(
                    by * TILE_M + group * 64 + lane // 32 * 16 + i // 2 % 2 * 8 + lane % 32 // 4
                )
                c_col = T.meta_var(bx * TILE_N + i // 4 * 8 + lane % 4 * 2 + i % 2)
                if T.And(c_row < m, c_col < n):
                    C[c_row, c_col] = total[i]

    @T.prim_func(s_tir=True)
    def plain(
        A: T.Buffer((m, k), a_type),
        B: T.Buffer((n, k), "float8_e4m3fn"),
        SA: T.Buffer((tiles_m, trips), "float32"),
        SB: T.Buffer((tiles_n, trips), "float32"),
        C: T.Buffer((m, n), "float32"),
    ):
        for i, j, p in T.grid(m, n, k):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, p])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] += (
                    T.Cast("float32", A[vi, vk])
                    * T.Cast("float32", B[vj, vk])
                    * (SA[vi // TILE_M, vk // TILE_K] * SB[vj // TILE_N, vk // TILE_K])
                )

    rng = np.random.default_rng(seed)
    inputs = {
        "A": rng.integers(-2, 3, (m, k)).astype(getattr(ml_dtypes, a_type)),
        "B": rng.integers(-2, 3, (n, k)).astype(ml_dtypes.float8_e4m3fn),
        "SA": rng.choice([0.5, 1.0, 2.0], (tiles_m, trips)).astype("float32"),
        "SB": rng.choice([0.25, 1.0, 4.0], (tiles_n, trips)).astype("float32"),
    }
    step = np.arange(k) // TILE_K
    left = inputs["A"].astype("float64") * inputs["SA"][:, step][np.arange(m) // TILE_M]
    right = inputs["B"].astype("float64") * inputs["SB"][:, step][np.arange(n) // TILE_N]
    return Kernel(main, inputs, {"C": left @ right.T}, tiles_m * tiles_n, plain)
