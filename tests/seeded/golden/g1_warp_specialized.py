"""G1: warp-specialised GEMM, C[m, n] = sum_k A[m, k] * B[n, k], one TMA producer, two consumers.

Mutations M01-M15, M19-M22, M24, M38-M43, M54, M56-M58, M60 and M62 break it in one place each.
"""

from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F16, F32, U32, U64, Local, Map, Shared, hand_threaded

from .common import (
    A_ELEMENTS,
    B_ELEMENTS,
    LOAD_2D,
    MMA_SS,
    NUM_ACCUMULATORS,
    NUM_THREADS,
    STAGE_BYTES,
    SWIZZLE_64B_MAP,
    SWIZZLE_128B_MAP,
    TILE_K,
    TILE_M,
    TILE_N,
    Kernel,
    Ring,
    operands,
    product,
    store_fragment,
)


def build(
    mutation: str | None = None,
    *,
    stages: int = 2,
    trips: int = 5,
    k_tail: int = 0,
    tx_first: bool = False,
    seed: int = 0,
) -> Kernel:
    """Build the kernel for one 128x64 output tile and `trips` K steps.

    `k_tail` takes elements off the last K step (the copy fills them with zero); `tx_first` issues
    the copies before `arrive.expect_tx`.
    """
    m = mutation
    consumer_trips = trips
    if m == "M58":
        trips = consumer_trips = 0
    num_k = max(trips, 1) * TILE_K - k_tail
    producer_trips = trips + 1 if m == "M57" else trips
    # M56: the barriers stand in the last stage of B
    overlap = stages * STAGE_BYTES - 2 * B_ELEMENTS + 1024 if m == "M56" else None
    ring = Ring(stages, barriers_at=overlap)
    b_swizzle = SWIZZLE_64B_MAP if m == "M60" else SWIZZLE_128B_MAP
    b_box = TILE_K // 2 if m == "M60" else TILE_K
    full_count, empty_count = 1, 1 if m == "M14" else 2
    tx_bytes = STAGE_BYTES + {"M04": -2 * B_ELEMENTS, "M05": 16}.get(m, 0)
    first_empty_parity = 0 if m == "M01" else 1
    full_parity_flip = 1 if m == "M02" else 0
    parity_period = 1 if m == "M03" else stages
    # without it the register count at entry is unknown and setmaxnreg is ignored
    producer_registers = {"M38": 40, "M39": 192}.get(m, 40)
    consumer_registers = 240 if m == "M38" else 232

    @T.inline
    def issue_load(sA, sB, full, a_map, b_map, k, row):
        T.ptx[LOAD_2D](
            T.address_of(sA[((k + (m == "M08")) % stages) * A_ELEMENTS]),
            T.address_of(a_map),
            k * TILE_K,
            row,
            T.address_of(full[ring.full + k % stages]),
        )
        T.ptx[LOAD_2D](
            T.address_of(sB[ring.b_start + ((k + (m == "M08")) % stages) * B_ELEMENTS]),
            T.address_of(b_map),
            k * TILE_K,
            0,
            T.address_of(full[ring.full + k % stages]),
        )
        if m == "M60":
            T.ptx[LOAD_2D](
                T.address_of(sB[ring.b_start + (k % stages) * B_ELEMENTS + B_ELEMENTS // 2]),
                T.address_of(b_map),
                k * TILE_K + TILE_K // 2,
                0,
                T.address_of(full[ring.full + k % stages]),
            )

    @T.inline
    def release(empty, slot, lane, tx):
        if m == "M12":
            if tx == 128:
                ptx.arrive(empty[ring.empty + slot])
        elif m == "M13":
            ptx.arrive(empty[ring.empty + slot])
        else:
            if lane == 0:
                ptx.arrive(empty[ring.empty + slot])

    @hand_threaded(NUM_THREADS, smem=ring.num_bytes, min_blocks=None if m == "M40" else 1)
    def main(
        A: F16[TILE_M, num_k], B: F16[TILE_N, num_k], C: F32[TILE_M, TILE_N],
        a_map: Map("A", (num_k, TILE_M), (TILE_K, TILE_M), SWIZZLE_128B_MAP),
        b_map: Map("B", (num_k, TILE_N), (b_box, TILE_N), b_swizzle),
        bx, tx, sA: Shared[F16], sB: Shared[F16], full: Shared[U64], empty: Shared[U64],
        acc: Local[F32, NUM_ACCUMULATORS], desc: Local[U64, 2], done: Local[U32],
    ):  # fmt: skip
        if tx == 0:
            for s in T.serial(stages):
                ptx.init_mbarrier(full[ring.full + s], full_count)
                ptx.init_mbarrier(empty[ring.empty + s], empty_count)
            T.ptx.fence.mbarrier_init.release.cluster()
        if m != "M15":
            T.tvm_storage_sync("shared")
        if tx < 128:
            if m == "M39":
                if tx < 64:
                    T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
            else:
                T.ptx["setmaxnreg.dec.sync.aligned.u32"](producer_registers)
            if tx == 0:
                for k in T.serial(producer_trips):
                    if m != "M09":
                        ptx.wait(
                            empty[ring.empty + k % stages],
                            ((k // parity_period) % 2) ^ first_empty_parity,
                        )
                    if tx_first:
                        issue_load(sA, sB, full, a_map, b_map, k, bx * TILE_M)
                    if m == "M06":
                        ptx.arrive(full[ring.full + k % stages])
                        T.ptx.mbarrier.expect_tx.relaxed.cta.shared__cta.b64(
                            T.address_of(full[ring.full + k % stages]), T.uint32(tx_bytes)
                        )
                    else:
                        ptx.expect_bytes(full[ring.full + k % stages], tx_bytes)
                    if not tx_first:
                        issue_load(sA, sB, full, a_map, b_map, k, bx * TILE_M)
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](consumer_registers)
            group = T.meta_var(tx // 128 - 1)
            lane = T.meta_var(tx % 128)
            for i in T.unroll(NUM_ACCUMULATORS if m != "M62" else NUM_ACCUMULATORS // 2):
                acc[i] = T.float32(0)
            if m == "M58":
                # the peeled first step of a pipelined loop, with nothing that guards it
                ptx.wait(full[ring.full], 0)
            for k in T.serial(consumer_trips):
                if m == "M54":
                    T.ptx.mbarrier.try_wait.parity.shared.b64(
                        done[0], T.address_of(full[ring.full + k % stages]),
                        T.Cast("uint32", (k // stages) % 2),
                    )  # fmt: skip
                else:
                    ptx.wait(
                        full[ring.full + (k + (m == "M07")) % stages],
                        ((k // parity_period) % 2) ^ full_parity_flip,
                    )
                if m == "M41":
                    T.tvm_storage_sync("shared")
                if m != "M19":
                    T.ptx.wgmma.fence.sync.aligned()
                T.cuda.wgmma.encode_matrix_descriptor(
                    T.address_of(desc[0]),
                    T.address_of(sA[(k % stages) * A_ELEMENTS + group * 64 * TILE_K]),
                    1, 64, 3,
                )  # fmt: skip
                T.cuda.wgmma.encode_matrix_descriptor(
                    T.address_of(desc[1]),
                    T.address_of(sB[ring.b_start + (k % stages) * B_ELEMENTS]),
                    1, 64, 3,
                )  # fmt: skip
                for kk in T.unroll(TILE_K // 16):
                    T.ptx[MMA_SS](
                        *[acc[i] for i in range(NUM_ACCUMULATORS)],
                        desc[0] + T.uint64(kk * 2), desc[1] + T.uint64(kk * 2),
                        T.bool(True), 1, 1, 0, 0,
                    )  # fmt: skip
                if m == "M24":
                    if lane < 64:
                        T.ptx.wgmma.commit_group.sync.aligned()
                else:
                    T.ptx.wgmma.commit_group.sync.aligned()
                if m == "M20":
                    for i in T.unroll(NUM_ACCUMULATORS):
                        acc[i] = acc[i] * T.float32(0.5)
                if m == "M10":
                    release(empty, k % stages, lane, tx)
                T.ptx.wgmma.wait_group.sync.aligned(1)
                if m == "M11":
                    release(empty, k % stages, lane, tx)
                elif m != "M10":
                    if k > 0:
                        release(empty, (k + stages - 1) % stages, lane, tx)
            if m != "M21" and m != "M22":
                T.ptx.wgmma.wait_group.sync.aligned(0)
            elif m == "M21":
                T.ptx.wgmma.wait_group.sync.aligned(1)
            store_fragment(C, acc, bx * TILE_M + group * 64, 0, lane)

    inputs = operands(TILE_M, TILE_N, num_k, seed)
    expected = product(inputs)
    if trips == 0:
        expected *= 0
    return Kernel(main, inputs, {"C": expected})
