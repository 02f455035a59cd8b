"""Two warp groups multiply: a shared A and a B of their own, stored by all threads, used by wgmma.

Matrices stand without swizzle, in pieces of 8 x 16 bytes. With one slot a multiply-add is waited
for before all meet; with two slots one may be in flight while the other slot is filled.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim.hand_threaded import F16, F32, U64, Local, Shared, hand_threaded

from ...golden.common import Kernel

TRIPS, GROUPS = 3, 2
A_SIZE, B_SIZE = 64 * 16, 8 * 16  # elements
MMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"


def build(mutation: str | None = None, *, slots: int = 1, seed: int = 0) -> Kernel:
    """Build it: C[g] = the sum over k of A[k] times B[g, k] transposed."""
    m = mutation
    slots = 2 if m in ("P70", "P71") else slots
    a_slots = 1 if m == "P71" else slots
    b_start = 2 * A_SIZE

    def at(row, column):  # of an element in a matrix of 16 columns
        return (row // 8 * 2 + column // 8) * 64 + row % 8 * 8 + column % 8

    @T.inline
    def describe(desc, element):
        T.cuda.wgmma.encode_matrix_descriptor(T.address_of(desc), T.address_of(element), 8, 16, 0)

    @hand_threaded(256, smem=6144)
    def main(
        A: F16[TRIPS, 64, 16], B: F16[GROUPS, TRIPS, 8, 16], C: F32[GROUPS, 64, 8],
        tx, half: Shared[F16], acc: Local[F32, 4], desc: Local[U64, 2],
    ):  # fmt: skip
        for i in T.unroll(4):
            acc[i] = T.float32(0)
        for k in T.serial(TRIPS):
            for i in T.serial(4):
                half[k % a_slots * A_SIZE + at(i * 16 + tx // 16, tx % 16)] = A[
                    k, i * 16 + tx // 16, tx % 16
                ]
            half[
                b_start + (k % slots * GROUPS + tx // 128) * B_SIZE + at(tx % 128 // 16, tx % 16)
            ] = B[tx // 128, k, tx % 128 // 16, tx % 16]
            if m != "P68":
                T.ptx.fence.proxy.async_.shared__cta()
            T.tvm_storage_sync("shared")
            if m != "P69":
                T.ptx.wgmma.fence.sync.aligned()
            describe(desc[0], half[k % a_slots * A_SIZE])
            describe(desc[1], half[b_start + (k % slots * GROUPS + tx // 128) * B_SIZE])
            T.ptx[MMA](acc[0], acc[1], acc[2], acc[3], desc[0], desc[1], T.bool(True), 1, 1, 0, 0)
            T.ptx.wgmma.commit_group.sync.aligned()
            T.ptx.wgmma.wait_group.sync.aligned(2 if m == "P70" else slots - 1)
            if m != "P67":
                T.tvm_storage_sync("shared")
        T.ptx.wgmma.wait_group.sync.aligned(0)
        for i in T.unroll(4):
            C[
                tx // 128,
                tx % 128 // 32 * 16 + i // 2 * 8 + tx % 32 // 4,
                tx % 4 * 2 + i % 2,
            ] = acc[i]

    rng = np.random.default_rng(seed)
    a = rng.integers(-2, 3, (TRIPS, 64, 16)).astype("float16")
    b = rng.integers(-2, 3, (GROUPS, TRIPS, 8, 16)).astype("float16")
    c = np.einsum("kmi,gkni->gmn", a.astype("float64"), b.astype("float64"))
    return Kernel(main, {"A": a, "B": b}, {"C": c})
