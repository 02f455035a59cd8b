"""G3: the GEMM of G1 with a double-buffered epilogue: stmatrix, proxy fence, TMA store.

Each consumer warp group stages 64 x 16 fp16 chunks of its fragment in two buffers of its own; a
buffer is written again only when the store that read it is known to have read it.  Mutations
M25-M32, M43 and M55 break the epilogue; it ends with the stores' writes still pending (N15).
"""

from tvm.script import tirx as T

from tests.sim.hand_threaded import F16, F32, U64, Local, Map, Shared, hand_threaded

from .common import (
    NUM_ACCUMULATORS,
    NUM_THREADS,
    STMATRIX,
    STORE_2D,
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

CHUNK = 16  # columns
CHUNK_BYTES = 64 * CHUNK * 2


def build(mutation: str | None = None, *, stages: int = 2, trips: int = 3, seed: int = 0) -> Kernel:
    """Build the kernel for one 128x64 output tile and `trips` K steps; C is fp16."""
    m = mutation
    num_k = trips * TILE_K
    ring = Ring(stages, extra_bytes=4 * CHUNK_BYTES)
    staging = ring.staging // 2
    allowed_unread = 2 if m == "M29" else 1
    waiting_lane = 32 if m == "M31" else 0
    shared_id = m == "M43"  # both groups meet at one barrier whose count names one of them

    @T.inline
    def stage_chunk(sC, acc, pair, pair32, q, group, lane):
        for e in T.unroll(8):
            pair[e] = T.Cast("float16", acc[q * 8 + e])
        T.ptx[STMATRIX](
            T.address_of(
                sC[
                    staging
                    + (group * 2 + q % 2) * (64 * CHUNK)
                    + (lane // 32 * 16 + lane % 16) * CHUNK
                    + lane % 32 // 16 * 8
                ]
            ),
            pair32[0],
            pair32[1],
            pair32[2],
            pair32[3],
        )

    @T.inline
    def store_tile(sC, c_map, acc, pair, pair32, group, lane, row, col):
        for q in T.unroll(TILE_N // CHUNK):
            if m != "M28" and lane == waiting_lane:
                T.ptx["cp.async.bulk.wait_group.read"](allowed_unread)
            if m != "M30":
                T.ptx.bar.sync(
                    T.uint32(1) if shared_id else T.Cast("uint32", group + 1), T.uint32(128)
                )
            stage_chunk(sC, acc, pair, pair32, q, group, lane)
            if m == "M26":
                if lane == 0:
                    T.ptx.fence.proxy.async_.shared__cta()
            elif m != "M25":
                T.ptx.fence.proxy.async_.shared__cta()
            if m != "M27":
                T.ptx.bar.sync(
                    T.uint32(1) if shared_id else T.Cast("uint32", group + 1), T.uint32(128)
                )
            if lane == 0:
                T.ptx[STORE_2D](
                    T.address_of(c_map),
                    col + q * CHUNK,
                    row + group * 64,
                    T.address_of(sC[staging + (group * 2 + q % 2) * (64 * CHUNK)]),
                )
                if m != "M32":
                    T.ptx.cp.async_.bulk.commit_group()
        if m != "M55":
            if lane == 0:
                T.ptx["cp.async.bulk.wait_group.read"](0)

    @hand_threaded(NUM_THREADS, smem=ring.num_bytes, min_blocks=1)
    def main(
        A: F16[TILE_M, num_k], B: F16[TILE_N, num_k], C: F16[TILE_M, TILE_N],
        a_map: Map("A", (num_k, TILE_M), (TILE_K, TILE_M), SWIZZLE_128B_MAP),
        b_map: Map("B", (num_k, TILE_N), (TILE_K, TILE_N), SWIZZLE_128B_MAP),
        c_map: Map("C", (TILE_N, TILE_M), (CHUNK, 64)),
        bx, tx, sA: Shared[F16], sB: Shared[F16], sC: Shared[F16], full: Shared[U64],
        empty: Shared[U64], acc: Local[F32, NUM_ACCUMULATORS], desc: Local[U64, 2],
        pair: Local[F16, 8],
    ):  # fmt: skip
        pair32 = T.decl_buffer((4,), "uint32", data=pair.data, scope="local")
        if tx == 0:
            init_ring(full, empty, ring, 1, 2)
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
            consume_tile(sA, sB, full, empty, acc, desc, ring, 0, trips, group, lane)
            store_tile(sC, c_map, acc, pair, pair32, group, lane, bx * TILE_M, 0)

    inputs = operands(TILE_M, TILE_N, num_k, seed)
    return Kernel(main, inputs, {"C": product(inputs)})
