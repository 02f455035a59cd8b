"""A ring of rows over tiles: one producer warp, two consumer warps, a factor beside each row.

A slot is full when its bytes are there, empty when both warps have released it. The producer waits
at the end until all slots are empty.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U64, Local, Shared, hand_threaded

from ...golden.common import Kernel
from .pieces import arrive, copy_in, drawn, expect, init

LANES, BYTES = 32, 128
FULL, EMPTY = 48, 52  # places of the barriers, in words of 64 bits
FACTORS = 88  # place of the factors, in words of 32 bits


def build(
    mutation: str | None = None, *, tiles: int = 2, trips: int = 3, slots: int = 2,
    waiting: str = "one lane", seed: int = 0,
) -> Kernel:  # fmt: skip
    """Build it: Y[w, i] = (X[i] + w) * F[i], i over all trips of all tiles.

    `waiting`: the lane of the producer that copies waits for an empty slot, or the whole warp does,
    and meets; or consumers wait again for the last row.
    """
    m = mutation
    if m == "P01":
        tiles = trips = 1
    slots = 1 if m == "P05" else slots
    total = tiles * trips
    lanes_wait = waiting == "whole warp" or m == "P07"

    @T.inline
    def wait_empty(bars, i, k):
        ptx.wait(
            bars[EMPTY + i % slots],
            ((k if m == "P04" else i) // slots % 2) ^ (0 if m == "P01" else 1),
        )

    @T.inline
    def wait_full(bars, i, k):
        ptx.wait(
            bars[FULL + i % slots],
            i // 2 % 2
            if m == "P05"
            else i % 2
            if m == "P06"
            else (k if m in ("P03", "P04") else i) // slots % 2,
        )

    @T.inline
    def fill(rows, bars, X, F, i):
        rows[FACTORS + i % slots] = F[i]
        if m == "P15":
            arrive(bars[FULL + i % slots])
            T.ptx.mbarrier.expect_tx.relaxed.cta.shared__cta.b64(
                T.address_of(bars[FULL + i % slots]), T.uint32(BYTES)
            )
        else:
            expect(bars[FULL + i % slots], BYTES)
        copy_in(rows[i % slots * LANES], X[i, 0], bars[FULL + i % slots], BYTES)

    @T.inline
    def release(bars, i, tx):
        if m == "P14":
            arrive(bars[EMPTY + i % slots])
        elif m == "P13":
            if tx == LANES:
                arrive(bars[EMPTY + i % slots])
        elif m != "P12" or i < total - 1:
            if tx % LANES == 0:
                arrive(bars[EMPTY + i % slots])

    @hand_threaded(3 * LANES, smem=512)
    def main(
        X: F32[total, LANES], F: F32[total], Y: F32[2, total, LANES],
        tx, rows: Shared[F32], bars: Shared[U64], factor: Local[F32],
    ):  # fmt: skip
        if tx == 0:
            init(bars, FULL, slots, 1)
            init(bars, EMPTY, slots, 2)
            if m != "P10":
                T.ptx.fence.mbarrier_init.release.cluster()
        if m != "P09":
            T.tvm_storage_sync("shared")
        if tx < LANES:
            if lanes_wait:
                for t, k in T.grid(tiles, trips):
                    wait_empty(bars, t * trips + k, k)
                    if m != "P07":
                        T.cuda.warp_sync()
                    if tx == 0:
                        fill(rows, bars, X, F, t * trips + k)
            elif tx == 0:
                for t, k in T.grid(tiles, trips):
                    wait_empty(bars, t * trips + k, k)
                    fill(rows, bars, X, F, t * trips + k)
                for s in T.serial(slots):
                    wait_empty(bars, total + s, total + s)
        else:
            for t, k in T.grid(tiles, trips):
                if m == "P08":
                    factor[0] = rows[FACTORS + (t * trips + k) % slots]
                wait_full(bars, t * trips + k, k)
                if m != "P08":
                    factor[0] = rows[FACTORS + (t * trips + k) % slots]
                Y[tx // LANES - 1, t * trips + k, tx % LANES] = (
                    rows[(t * trips + k) % slots * LANES + tx % LANES]
                    + T.Cast("float32", tx // LANES - 1)
                ) * factor[0]
                if m == "P02":
                    if t * trips + k < total - slots:
                        wait_full(bars, t * trips + k + slots, k + slots)
                if m != "P11":
                    T.ptx.fence.proxy.async_.shared__cta()
                T.cuda.warp_sync()
                release(bars, t * trips + k, tx)
            if waiting == "again":
                wait_full(bars, total - 1, trips - 1)

    x, f = drawn(total, LANES, seed=seed), drawn(total, seed=seed + 1)
    y = np.stack([(x.astype("float64") + w) * f[:, None] for w in range(2)])
    return Kernel(main, {"X": x, "F": f}, {"Y": y})
