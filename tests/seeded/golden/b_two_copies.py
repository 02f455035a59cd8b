"""B two copies: a box of halves by TMA and a row of floats by a bulk copy, on one barrier a trip.

The tensor has fewer rows than the boxes cover, so that the last box is clipped: it still counts all
of its bytes. One slot; everybody waits, reads, and fences before the slot is filled again.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F16, F32, U64, Local, Map, Shared, hand_threaded

from .common import LOAD_2D, Kernel

ROWS, COLUMNS, TRIPS = 8, 64, 3
TOTAL = ROWS * TRIPS - 3  # the last box has three rows outside
TILE_BYTES, SCALE_BYTES = ROWS * COLUMNS * 2, COLUMNS * 4
BYTES = TILE_BYTES + SCALE_BYTES


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[k, c] = S[k, c] times the sum of column c of box k of A."""
    m = mutation

    def expected_bytes(k):
        if m == "B01":  # as if the halves had four bytes
            return T.uint32(2 * TILE_BYTES + SCALE_BYTES)
        if m == "B02":
            return T.uint32(TILE_BYTES)
        if m == "B04":  # the three rows outside of the tensor left out
            return T.if_then_else(
                k == TRIPS - 1, T.uint32(BYTES - 3 * COLUMNS * 2), T.uint32(BYTES)
            )
        if m == "B05":  # right in the sum of all trips
            return T.if_then_else(
                k == 0, T.uint32(BYTES + 128), T.if_then_else(k == 1, BYTES - 128, BYTES)
            )
        return T.uint32(BYTES)

    @hand_threaded(COLUMNS, smem=1536)
    def main(
        A: F16[TOTAL, COLUMNS], S: F32[TRIPS, COLUMNS], Y: F32[TRIPS, COLUMNS],
        a_map: Map("A", (COLUMNS, TOTAL), (COLUMNS, ROWS)),
        tx, tile: Shared[F16], scale: Shared[F32], full: Shared[U64], acc: Local[F32],
    ):  # fmt: skip
        ptx.set_up(tx, (full[176], 1), (full[177], 1))
        for k in T.serial(TRIPS):
            if tx == 0:
                T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                    T.address_of(full[176]), expected_bytes(k)
                )
                T.ptx[LOAD_2D](
                    T.address_of(tile[0]), T.address_of(a_map), 0, k * ROWS,
                    T.address_of(full[176]),
                )  # fmt: skip
                if m == "B03":
                    if k < TRIPS - 1:
                        ptx.load_bytes(scale[256], S[k, 0], SCALE_BYTES, full[176])
                else:
                    ptx.load_bytes(
                        scale[256],
                        S[k, 0],
                        SCALE_BYTES // 2 if m == "B06" else SCALE_BYTES,
                        full[177 if m == "B07" else 176],
                    )
            ptx.wait(full[176], k % 2)
            acc[0] = T.float32(0)
            for r in T.serial(ROWS):
                acc[0] = acc[0] + T.Cast("float32", tile[r * COLUMNS + tx])
            Y[k, tx] = acc[0] * scale[256 + tx]
            T.ptx.fence.proxy.async_.shared__cta()
            T.tvm_storage_sync("shared")

    rng = np.random.default_rng(seed)
    a = rng.integers(-2, 3, (TOTAL, COLUMNS)).astype("float16")
    s = rng.integers(1, 4, (TRIPS, COLUMNS)).astype("float32")
    padded = np.zeros((ROWS * TRIPS, COLUMNS))
    padded[:TOTAL] = a
    sums = padded.reshape(TRIPS, ROWS, COLUMNS).sum(1)
    return Kernel(main, {"A": a, "S": s}, {"Y": sums * s})
