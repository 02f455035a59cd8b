"""Split-K product over many CTAs: bulk reductions into a workspace, and a semaphore.

Each CTA multiplies a part of K into a tile of shared memory and adds it to the workspace W by
`cp.reduce.async.bulk`.

`order="last"`: CTAs count themselves when their reduction is complete; the last one reads the sum
back, applies the epilogue Y = max(W + bias, 0), and leaves W and the counter zero for the next run.
`order="turns"`: CTA i waits until the counter says i; the first one stores, so W may hold anything,
and the last one reads it back.  W keeps the sum.
Mutations K01-K15.
"""

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U32, Local, Shared, hand_threaded

from .common import REDUCE_1D, Kernel

M, N = 4, 8  # of the tile
TILE = M * N  # one element a thread


def plain_product(k: int, keeps_sum: bool) -> PrimFunc:
    """Return the plain program: Y = max(A B^T + bias, 0); it leaves S alone, and W or not."""

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((M, k), "float32"),
        B: T.Buffer((N, k), "float32"),
        bias: T.Buffer((N,), "float32"),
        W: T.Buffer((TILE,), "float32"),
        S: T.Buffer((1,), "uint32"),
        Y: T.Buffer((M, N), "float32"),
    ):
        C = T.alloc_buffer((M, N), "float32")
        for i, j, kk in T.grid(M, N, k):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, kk])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vj, vk]
        if keeps_sum:
            for i, j in T.grid(M, N):
                with T.sblock("W"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    W[vi * N + vj] = C[vi, vj]
        for i, j in T.grid(M, N):
            with T.sblock("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.max(C[vi, vj] + bias[vj], T.float32(0))

    return main


def build(
    mutation: str | None = None,
    *,
    splits: int = 6,
    k: int = 16,
    order: str = "last",
    warps: int = 2,
    seed: int = 0,
) -> Kernel:
    """Build the kernel for one tile of `M` x `N`; CTA i has the i-th part of `k`."""
    m = mutation
    turns = order == "turns"
    part = -(-k // splits)  # of K; the last CTAs may have less, or nothing
    threads = 32 * warps
    limit = {"K05": splits, "K06": splits - 2}.get(m or "", splits - 1)
    signaller = 32 if m == "K15" else 0

    @T.inline
    def multiply(A, B, tile, acc, first, tx):
        if tx < TILE:
            acc[0] = T.float32(0)
            for i in T.serial(part):
                if first + i < k:
                    acc[0] = acc[0] + A[tx // N, first + i] * B[tx % N, first + i]
            tile[tx] = acc[0]
        if m != "K02":
            T.ptx.fence.proxy.async_.shared__cta()
        if m != "K10":
            T.tvm_storage_sync("shared")

    @T.inline
    def add_tile(W, tile, stores):
        """Add the tile to the workspace, and wait until the sum is there."""
        if stores:
            ptx.store_bytes(W[0], tile[0], TILE * 4)
        else:
            T.ptx[REDUCE_1D](T.address_of(W[0]), T.address_of(tile[0]), T.uint32(TILE * 4))
        T.ptx.cp.async_.bulk.commit_group()
        if m == "K01":
            T.ptx["cp.async.bulk.wait_group.read"](0)
        elif m != "K15":
            T.ptx.cp.async_.bulk.wait_group(0)

    @T.inline
    def count(S, old):
        """Say that this CTA's part is in W; learn what those that came before have added."""
        if m == "K03":
            T.ptx["atom.relaxed.gpu.global.add.u32"](old[0], T.address_of(S[0]), T.uint32(1))
        elif m == "K04":
            T.ptx["atom.release.gpu.global.add.u32"](old[0], T.address_of(S[0]), T.uint32(1))
        elif m == "K08":
            T.ptx["atom.acq_rel.cta.global.add.u32"](old[0], T.address_of(S[0]), T.uint32(1))
        else:
            T.ptx["atom.acq_rel.gpu.global.add.u32"](old[0], T.address_of(S[0]), T.uint32(1))

    @T.inline
    def finish(W, S, bias, Y, tx):
        if tx < TILE:
            Y[tx // N, tx % N] = T.max(W[tx] + bias[tx % N], T.float32(0))
            if not turns and m != "K09":
                W[tx] = T.float32(0)
        if tx == 0:
            S[0] = T.uint32(0)

    @hand_threaded(threads, grid=splits, smem=256)
    def main(
        A: F32[M, k], B: F32[N, k], bias: F32[N], W: F32[TILE], S: U32[1], Y: F32[M, N],
        bx, tx, tile: Shared[F32], place: Shared[U32], acc: Local[F32], old: Local[U32],
    ):  # fmt: skip
        if m == "K07":
            # the first CTA clears the workspace, and nothing tells the others
            if bx == 0:
                if tx < TILE:
                    W[tx] = T.float32(0)
        multiply(A, B, tile, acc, bx * part, tx)
        if tx == 0:
            if turns:
                if m != "K11":
                    T.cuda.wait_until(
                        old[0],
                        T.address_of(S[0]),
                        old[0] == T.Cast("uint32", bx + 1 if m == "K12" else bx),
                        ptx_type="u32",
                    )
                    T.ptx.fence.proxy.async_.global_()
                if bx == 0:
                    add_tile(W, tile, True)
                else:
                    add_tile(W, tile, False)
            else:
                add_tile(W, tile, False)
        if m == "K15":
            # the second warp meets the first, and tells of a sum that is still under way
            T.tvm_storage_sync("shared")
        if tx == signaller:
            count(S, old)
            place[TILE] = old[0]
        if m == "K13":
            # the lanes of the first warp learn it, the second warp does not wait
            T.cuda.warp_sync()
        elif m != "K14":
            T.tvm_storage_sync("shared")
        if place[TILE] == T.uint32(limit):
            finish(W, S, bias, Y, tx)
        if m == "K15":
            if tx == 0:
                T.ptx["cp.async.bulk.wait_group.read"](0)

    rng = np.random.default_rng(seed)
    inputs = {
        "A": rng.integers(-2, 3, (M, k)).astype("float32"),
        "B": rng.integers(-2, 3, (N, k)).astype("float32"),
        "bias": rng.integers(-2, 3, N).astype("float32"),
        "W": np.full(TILE, 99.0 if turns else 0.0, "float32"),
        "S": np.zeros(1, "uint32"),
    }
    product = inputs["A"].astype("float64") @ inputs["B"].astype("float64").T
    expected = {
        "Y": np.maximum(product + inputs["bias"], 0),
        "W": product.ravel() if turns else np.zeros(TILE),
        "S": np.zeros(1),
    }
    return Kernel(main, inputs, expected, grid=splits, against=plain_product(k, turns))
