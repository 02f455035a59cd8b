"""G7: persistent GEMM: two CTAs walk over three output tiles, the ring's phases run on.

`union=False` stages the output as G3 does.  `union=True` lets the staging tile lie on the ring's
first A slot, reads it back with plain loads, and tells the producer through `drained` when the
next tile may be loaded into it.  Mutations M17, M18, M59 (both forms) and M34 (union).
"""

from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F16, F32, U64, Local, Map, Shared, hand_threaded

from .common import (
    A_ELEMENTS,
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

CHUNK = 16
CHUNK_BYTES = 64 * CHUNK * 2


def build(
    mutation: str | None = None,
    *,
    stages: int = 2,
    trips: int = 3,
    tiles: int = 3,
    grid: int = 2,
    union: bool = False,
    seed: int = 0,
) -> Kernel:
    """Build the kernel for `tiles` output tiles of 128x64 stacked along m; C is fp16."""
    m = mutation
    num_k, num_m = trips * TILE_K, tiles * TILE_M
    ring = Ring(stages, extra_bytes=0 if union else 4 * CHUNK_BYTES, extra_barriers=1)
    staging = 0 if union else ring.staging // 2
    drained = ring.extra
    # M59: the scheduler rounds the number of waves down
    waves = tiles // grid if m == "M59" else None

    def position(t):  # ring position at the start of this CTA's tile number t
        return 0 if m == "M18" else t * trips

    @T.inline
    def store_by_tma(sC, c_map, acc, pair, pair32, group, lane, row):
        for q in T.unroll(TILE_N // CHUNK):
            if lane == 0:
                T.ptx["cp.async.bulk.wait_group.read"](1)
            T.ptx.bar.sync(T.Cast("uint32", group + 1), T.uint32(128))
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
            T.ptx.fence.proxy.async_.shared__cta()
            T.ptx.bar.sync(T.Cast("uint32", group + 1), T.uint32(128))
            if lane == 0:
                T.ptx[STORE_2D](
                    T.address_of(c_map),
                    q * CHUNK,
                    row + group * 64,
                    T.address_of(sC[staging + (group * 2 + q % 2) * (64 * CHUNK)]),
                )
                T.ptx.cp.async_.bulk.commit_group()

    @T.inline
    def store_by_readback(sC, C, full, acc, group, lane, row):
        # each group stages its 64 rows on its own half of A's slot 0
        for i in T.serial(NUM_ACCUMULATORS):
            sC[
                group * (A_ELEMENTS // 2)
                + (lane // 32 * 16 + i // 2 % 2 * 8 + lane % 32 // 4) * TILE_N
                + i // 4 * 8
                + lane % 4 * 2
                + i % 2
            ] = T.Cast("float16", acc[i])
        T.ptx.bar.sync(T.Cast("uint32", group + 1), T.uint32(128))
        for i in T.serial(4):
            for v in T.vectorized(8):
                C[row + group * 64 + i * 16 + lane // 8, lane % 8 * 8 + v] = sC[
                    group * (A_ELEMENTS // 2) + (i * 16 + lane // 8) * TILE_N + lane % 8 * 8 + v
                ]
        if m != "M34":
            T.ptx.fence.proxy.async_.shared__cta()
        T.ptx.bar.sync(T.Cast("uint32", group + 1), T.uint32(128))
        if lane == 0:
            ptx.arrive(full[drained])

    @hand_threaded(NUM_THREADS, grid=grid, smem=ring.num_bytes, min_blocks=1)
    def main(
        A: F16[num_m, num_k], B: F16[TILE_N, num_k], C: F16[num_m, TILE_N],
        a_map: Map("A", (num_k, num_m), (TILE_K, TILE_M), SWIZZLE_128B_MAP),
        b_map: Map("B", (num_k, TILE_N), (TILE_K, TILE_N), SWIZZLE_128B_MAP),
        c_map: Map("C", (TILE_N, num_m), (CHUNK, 64)),
        bx, tx, sA: Shared[F16], sB: Shared[F16], sC: Shared[F16], full: Shared[U64],
        empty: Shared[U64], acc: Local[F32, NUM_ACCUMULATORS], desc: Local[U64, 2],
        pair: Local[F16, 8],
    ):  # fmt: skip
        pair32 = T.decl_buffer((4,), "uint32", data=pair.data, scope="local")
        num_waves = T.meta_var((tiles - bx + grid - 1) // grid if waves is None else waves)
        if tx == 0:
            if m != "M17":
                init_ring(full, empty, ring, 1, 2)
            ptx.init_mbarrier(full[drained], 2)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.tvm_storage_sync("shared")
        if m == "M17":
            # all threads walk over the tiles together and set the ring up each time
            for t in T.serial(num_waves):
                if tx == 0:
                    init_ring(full, empty, ring, 1, 2)
                T.tvm_storage_sync("shared")
                if tx == 0:
                    for k in T.serial(trips):
                        load_stage(
                            sA, sB, full, empty, a_map, b_map, ring, k, k,
                            (t * grid + bx) * TILE_M, 0,
                        )  # fmt: skip
                if tx >= 128:
                    consume_tile(
                        sA, sB, full, empty, acc, desc, ring, 0, trips,
                        tx // 128 - 1, tx % 128,
                    )  # fmt: skip
                    store_by_tma(
                        sC, c_map, acc, pair, pair32, tx // 128 - 1, tx % 128,
                        (t * grid + bx) * TILE_M,
                    )  # fmt: skip
            if tx >= 128:
                if tx % 128 == 0:
                    T.ptx["cp.async.bulk.wait_group.read"](0)
        elif tx < 128:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
            if tx == 0:
                for t in T.serial(num_waves):
                    if union:
                        ptx.wait(full[drained], (t % 2) ^ 1)
                    for k in T.serial(trips):
                        load_stage(
                            sA, sB, full, empty, a_map, b_map, ring, position(t) + k, k,
                            (t * grid + bx) * TILE_M, 0,
                        )  # fmt: skip
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)
            group = T.meta_var(tx // 128 - 1)
            lane = T.meta_var(tx % 128)
            for t in T.serial(num_waves):
                consume_tile(sA, sB, full, empty, acc, desc, ring, position(t), trips, group, lane)
                if union:
                    store_by_readback(sC, C, full, acc, group, lane, (t * grid + bx) * TILE_M)
                else:
                    store_by_tma(
                        sC, c_map, acc, pair, pair32, group, lane, (t * grid + bx) * TILE_M
                    )
            if not union:
                if lane == 0:
                    T.ptx["cp.async.bulk.wait_group.read"](0)

    inputs = operands(num_m, TILE_N, num_k, seed)
    return Kernel(main, inputs, {"C": product(inputs)}, grid=grid)
