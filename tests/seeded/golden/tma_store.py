"""A persistent GEMM whose C goes out by TMA: stmatrix into swizzled staging, two buffers in turn.

Each consumer group stages 64x32 pieces of its rows; lane 0 commits a bulk group for each and goes
on, so that a store is in flight while the next piece is staged and while the next tile is
multiplied.  M, N and K are ragged: loads outside are zeros, stores outside are clipped, and a piece
may lie outside altogether.  Mutations T01 to T08.
"""

from tvm.script import tirx as T

from tests.sim.hand_threaded import F16, F32, U64, Local, Map, Shared, hand_threaded

from .common import (
    NUM_ACCUMULATORS,
    NUM_THREADS,
    STMATRIX,
    STORE_2D,
    SWIZZLE_64B_MAP,
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
    plain_product,
    product,
)

PIECE = 32  # columns of a staged piece: rows of 64 bytes
PIECE_ELEMENTS = 64 * PIECE


def build(
    mutation: str | None = None,
    *,
    m: int = 136,
    n: int = 104,
    k: int = 88,
    grid: int = 2,
    stages: int = 2,
    seed: int = 0,
) -> Kernel:
    """Build the kernel for C (m, n) = A (m, k) B (n, k)^T in fp16; n and k are multiples of 8."""
    bug = mutation
    trips = (k + TILE_K - 1) // TILE_K
    tiles_n = (n + TILE_N - 1) // TILE_N
    tiles = (m + TILE_M - 1) // TILE_M * tiles_n
    ring = Ring(stages, extra_bytes=4 * PIECE_ELEMENTS * 2)
    staging = ring.staging // 2
    unread = 2 if bug == "T03" else 1
    # T08: the host rounds C up to whole tiles
    mapped_m = (m + TILE_M - 1) // TILE_M * TILE_M if bug == "T08" else m

    @T.inline
    def stage_piece(sC, acc, pair, pair32, piece, buffer, group, lane):
        row, half = T.meta_var(lane // 32 * 16 + lane % 16), T.meta_var(lane % 32 // 16)
        for q in T.unroll(2):
            for e in T.unroll(8):
                pair[e] = T.Cast("float16", acc[piece * 16 + q * 8 + e])
            T.ptx[STMATRIX](
                T.address_of(
                    sC[
                        staging
                        + (group * 2 + buffer) * PIECE_ELEMENTS
                        + row * PIECE
                        + (
                            q * 2 + half
                            if bug == "T04"
                            else T.bitwise_xor(q * 2 + half, row // 2 % 4)
                        )
                        * 8
                    ]
                ),
                *[pair32[r] for r in range(4)],
            )

    @T.inline
    def store_tile(sC, c_map, acc, pair, pair32, group, lane, row, col):
        for p in T.unroll(TILE_N // PIECE):
            if lane == 0:
                T.ptx["cp.async.bulk.wait_group.read"](unread)
            T.ptx.bar.sync(T.Cast("uint32", group + 1), T.uint32(128))
            stage_piece(sC, acc, pair, pair32, p, p % 2, group, lane)
            if bug != "T01":
                T.ptx.fence.proxy.async_.shared__cta()
            if bug != "T02":
                T.ptx.bar.sync(T.Cast("uint32", group + 1), T.uint32(128))
            if lane == 0:
                if bug == "T07":  # the group is closed before the store is in it
                    T.ptx.cp.async_.bulk.commit_group()
                T.ptx[STORE_2D](
                    T.address_of(c_map),
                    (0 if bug == "T05" else col) + p * PIECE,
                    row + group * 64,
                    T.address_of(sC[staging + (group * 2 + p % 2) * PIECE_ELEMENTS]),
                )
                if bug != "T07":
                    T.ptx.cp.async_.bulk.commit_group()

    @hand_threaded(NUM_THREADS, grid=grid, smem=ring.num_bytes, min_blocks=1)
    def main(
        A: F16[m, k], B: F16[n, k], C: F16[m, n],
        a_map: Map("A", (k, m), (TILE_K, TILE_M), SWIZZLE_128B_MAP),
        b_map: Map("B", (k, n), (TILE_K, TILE_N), SWIZZLE_128B_MAP),
        c_map: Map("C", (n, mapped_m), (PIECE, 64), SWIZZLE_64B_MAP),
        bx, tx, sA: Shared[F16], sB: Shared[F16], sC: Shared[F16], full: Shared[U64],
        empty: Shared[U64], acc: Local[F32, NUM_ACCUMULATORS], desc: Local[U64, 2],
        pair: Local[F16, 8],
    ):  # fmt: skip
        pair32 = T.decl_buffer((4,), "uint32", data=pair.data, scope="local")
        waves = T.meta_var((tiles - bx + grid - 1) // grid)
        if tx == 0:
            init_ring(full, empty, ring, 1, 2)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.tvm_storage_sync("shared")
        if tx < 128:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
            if tx == 0:
                for t in T.serial(waves):
                    tile = T.meta_var(t * grid + bx)
                    for step in T.serial(trips):
                        load_stage(
                            sA, sB, full, empty, a_map, b_map, ring, t * trips + step, step,
                            tile // tiles_n * TILE_M, tile % tiles_n * TILE_N,
                        )  # fmt: skip
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)
            group = T.meta_var(tx // 128 - 1)
            lane = T.meta_var(tx % 128)
            for t in T.serial(waves):
                tile = T.meta_var(t * grid + bx)
                consume_tile(
                    sA, sB, full, empty, acc, desc, ring,
                    (t if bug == "T06" else t * trips), trips, group, lane,
                )  # fmt: skip
                store_tile(
                    sC, c_map, acc, pair, pair32, group, lane,
                    tile // tiles_n * TILE_M, tile % tiles_n * TILE_N,
                )  # fmt: skip
            if lane == 0:
                T.ptx["cp.async.bulk.wait_group.read"](0)

    inputs = operands(m, n, k, seed)
    return Kernel(main, inputs, {"C": product(inputs)}, grid, plain_product(m, n, k, "float16"))
