"""wgmma with A made in registers: int8 by ldmatrix, converted to fp16 and scaled; B fp16 by TMA.

A is stored as a kernel of this kind wants it: of 16 numbers along k, those that a lane needs for
one fragment (2t, 2t + 1, 2t + 8, 2t + 9) stand side by side.  The bytes of a K step are fetched
while the step before is multiplied, and converted when that is done: the fragments are in use until
then.  A slot is read by every warp through the generic proxy and by its wgmma, so it is released by
each warp, after a proxy fence and the wait.  Mutations R01 to R10.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F16, F32, I8, U32, U64, Local, Map, Shared, hand_threaded

from .common import (
    LDMATRIX,
    LOAD_2D,
    MMA_SS,
    NUM_ACCUMULATORS,
    NUM_THREADS,
    SWIZZLE_64B_MAP,
    SWIZZLE_128B_MAP,
    TILE_K,
    TILE_M,
    TILE_N,
    Kernel,
)

A_BYTES = TILE_M * TILE_K  # int8: rows of 64 bytes
B_BYTES = TILE_N * TILE_K * 2
NUM_STEPS = TILE_K // 16
MMA_RS = MMA_SS  # of one mnemonic; A is four registers


def stored_place(k):
    """Return where element k of a row of A is stored."""
    return k // 16 * 16 + k % 8 // 2 * 4 + k % 16 // 8 * 2 + k % 2


def build(
    mutation: str | None = None,
    *,
    m: int = 88,
    n: int = 52,
    k: int = 144,
    stages: int = 2,
    seed: int = 0,
) -> Kernel:
    """Build the kernel for C (m, n) = (A S) B^T in fp32, k a multiple of 16.

    A (m, k) is int8 and stored as above, S (m, k / 64 rounded up) and B (n, k) are fp16.
    """
    bug = mutation
    trips = (k + TILE_K - 1) // TILE_K
    tiles_m, tiles_n = (m + TILE_M - 1) // TILE_M, (n + TILE_N - 1) // TILE_N
    b_start = stages * A_BYTES
    full_at = (b_start + stages * B_BYTES) // 8
    empty_at = full_at + stages
    num_bytes = (8 * (empty_at + stages) + 127) // 128 * 128
    loaded = (2 if bug == "R08" else 1) * A_BYTES + B_BYTES
    kind = "uint8" if bug == "R07" else "int8"

    @T.inline
    def fetch(sA, raw32, slot, group, tx):
        row = T.meta_var(group * 64 + tx % 128 // 32 * 16 + tx % 16)
        for h in T.unroll(2):  # 32 bytes of each row: rows 0-7 and 8-15 of two k16
            T.ptx[LDMATRIX](
                *[raw32[h * 4 + r] for r in range(4)],
                T.address_of(
                    sA[
                        slot * A_BYTES
                        + row * TILE_K
                        + T.bitwise_xor(h * 2 + tx % 32 // 16, row // 2 % 4) * 16
                    ]
                ),
            )

    @T.inline
    def convert(raw8, frag, scale):
        """Make the fragments: register r of a k16 holds row 8 (r % 2), k 8 (r / 2)."""
        for q in T.unroll(NUM_STEPS):
            for r in T.unroll(4):
                # R04: the second row and the second k are exchanged
                at = T.meta_var((r // 2 + r % 2 * 2) if bug == "R04" else r)
                for e in T.unroll(2):
                    frag[q * 8 + at * 2 + e] = (
                        T.Cast("float16", raw8[q * 8 + r % 2 * 4 + r // 2 * 2 + e]) * scale[r % 2]
                    )

    @T.inline
    def multiply(acc, frag32, desc, step):
        if bug != "R02":
            T.ptx.wgmma.fence.sync.aligned()
        for q in T.unroll(NUM_STEPS):
            T.ptx[MMA_RS](
                *[acc[i] for i in range(NUM_ACCUMULATORS)],
                *[frag32[q * 4 + i] for i in range(4)],
                desc[0] + T.uint64(q * 2),
                (step > 0) if q == 0 else T.bool(True),
                1, 1, 0,
            )  # fmt: skip
        T.ptx.wgmma.commit_group.sync.aligned()

    @T.inline
    def release(barriers, step, tx):
        T.cuda.warp_sync()
        if tx % 32 == 0:
            ptx.arrive(barriers[empty_at + step % stages])

    @hand_threaded(NUM_THREADS, grid=(tiles_n, tiles_m), smem=num_bytes, min_blocks=1)
    def main(
        A: I8[m, k], S: F16[m, trips], B: F16[n, k], C: F32[m, n],
        a_map: Map("A", (k, m), (TILE_K, TILE_M), SWIZZLE_64B_MAP, dtype="uint8"),
        b_map: Map("B", (k, n), (TILE_K, TILE_N), SWIZZLE_128B_MAP),
        bx, by, tx, sA: Shared[I8, num_bytes], sB: Shared[F16], barriers: Shared[U64],
        acc: Local[F32, NUM_ACCUMULATORS], raw32: Local[U32, 8],
    ):  # fmt: skip
        raw8 = T.decl_buffer((32,), kind, data=raw32.data, scope="local")
        frag = T.alloc_buffer((32,), "float16", scope="local")
        frag32 = T.decl_buffer((16,), "uint32", data=frag.data, scope="local")
        scale = T.alloc_buffer((2,), "float16", scope="local")
        desc = T.alloc_buffer((1,), "uint64", scope="local")
        if tx == 0:
            for s in T.serial(stages):
                ptx.init_mbarrier(barriers[full_at + s], 1)
                ptx.init_mbarrier(barriers[empty_at + s], 8)
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
                        T.address_of(sB[(b_start + step % stages * B_BYTES) // 2]),
                        T.address_of(b_map), step * TILE_K, bx * TILE_N, filled,
                    )  # fmt: skip
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)
            group = T.meta_var(tx // 128 - 1)
            lane = T.meta_var(tx % 128)
            row = T.meta_var(by * TILE_M + group * 64 + lane // 32 * 16 + lane % 32 // 4)
            for step in T.serial(trips):
                for i in T.unroll(2):
                    scale[i] = T.if_then_else(
                        row + i * 8 < m,
                        S[
                            row + i * 8,
                            T.min(step + 1, trips - 1) if bug == "R09" else step,
                        ],
                        T.float16(0),
                    )
                if bug == "R10":
                    if tx % 32 == 0:
                        ptx.wait(barriers[full_at + step % stages], step // stages % 2)
                else:
                    ptx.wait(barriers[full_at + step % stages], step // stages % 2)
                T.cuda.wgmma.encode_matrix_descriptor(
                    T.address_of(desc[0]),
                    T.address_of(sB[(b_start + step % stages * B_BYTES) // 2]),
                    1, 64, 3,
                )  # fmt: skip
                fetch(sA, raw32, step % stages, group, tx)
                if bug != "R06":
                    T.ptx.fence.proxy.async_.shared__cta()
                if bug == "R01":
                    convert(raw8, frag, scale)
                T.ptx.wgmma.wait_group.sync.aligned(1 if bug == "R03" else 0)
                if bug != "R05":
                    if step > 0:
                        release(barriers, step - 1, tx)
                if bug != "R01":
                    convert(raw8, frag, scale)
                multiply(acc, frag32, desc, step)
                if bug == "R05":
                    release(barriers, step, tx)
            T.ptx.wgmma.wait_group.sync.aligned(0)
            for i in T.serial(NUM_ACCUMULATORS):
                c_row = T.meta_var(row + i // 2 % 2 * 8)
                c_col = T.meta_var(bx * TILE_N + i // 4 * 8 + lane % 4 * 2 + i % 2)
                if T.And(c_row < m, c_col < n):
                    C[c_row, c_col] = acc[i]

    @T.prim_func(s_tir=True)
    def plain(
        A: T.Buffer((m, k), "int8"),
        S: T.Buffer((m, trips), "float16"),
        B: T.Buffer((n, k), "float16"),
        C: T.Buffer((m, n), "float32"),
    ):
        for i, j, p in T.grid(m, n, k):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, p])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] += T.Cast(
                    "float32",
                    T.Cast("float16", A[vi, stored_place(vk)]) * S[vi, vk // TILE_K],
                ) * T.Cast("float32", B[vj, vk])

    rng = np.random.default_rng(seed)
    inputs = {
        "A": rng.integers(-4, 5, (m, k)).astype("int8"),
        "S": rng.choice([0.5, 1.0, 2.0], (m, trips)).astype("float16"),
        "B": rng.integers(-2, 3, (n, k)).astype("float16"),
    }
    left = inputs["A"][:, stored_place(np.arange(k))].astype("float64")
    left *= inputs["S"].astype("float64")[:, np.arange(k) // TILE_K]
    expected = {"C": left @ inputs["B"].astype("float64").T}
    return Kernel(main, inputs, expected, tiles_m * tiles_n, plain)
