"""Rows that one thread loads and stores by bulk copies, beside words that its warp hands on.

Two slots. Two more warps wait for a row; the first reads the words, they meet, and its first lane
tells the producer, which then fills the slot again. `registers`: warp groups that trade registers.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U64, Shared, hand_threaded

from ...golden.common import Kernel
from .pieces import arrive, copy_in, copy_out, drawn, expect, init

LANES, BYTES, TRIPS, SLOTS = 32, 128, 5, 2
FULL, SEEN, WORDS = 64, 66, 64  # places: of barriers in 64 bits, of the words in 32 bits


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y = X, W = F."""
    m = mutation

    @hand_threaded(3 * LANES, smem=640)
    def main(
        X: F32[TRIPS, LANES], F: F32[TRIPS, LANES], Y: F32[TRIPS, LANES], W: F32[TRIPS, LANES],
        tx, rows: Shared[F32], bars: Shared[U64],
    ):  # fmt: skip
        if tx == 0:
            init(bars, FULL, SLOTS, 1)
            init(bars, SEEN, SLOTS, 1)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.tvm_storage_sync("shared")
        if tx < LANES:
            for k in T.serial(TRIPS):
                ptx.wait(bars[SEEN + k % SLOTS], (k // SLOTS % 2) ^ 1)
                rows[WORDS + k % SLOTS * LANES + tx] = F[k, tx]
                if m != "P97":
                    T.cuda.warp_sync()
                if tx == 0:
                    if k >= SLOTS:  # the store of this slot has read it, the other one may not
                        T.ptx["cp.async.bulk.wait_group.read"](SLOTS if m == "P95" else 1)
                    expect(bars[FULL + k % SLOTS], BYTES)
                    copy_in(rows[k % SLOTS * LANES], X[k, 0], bars[FULL + k % SLOTS], BYTES)
                    ptx.wait(bars[FULL + k % SLOTS], k // SLOTS % 2)
                    copy_out(Y[k, 0], rows[k % SLOTS * LANES], BYTES)
                T.cuda.warp_sync()
            if tx == 0:
                T.ptx["cp.async.bulk.wait_group.read"](0)
        else:
            for k in T.serial(TRIPS):
                ptx.wait(bars[FULL + k % SLOTS], k // SLOTS % 2)
                if tx < 2 * LANES:
                    W[k, tx - LANES] = rows[WORDS + k % SLOTS * LANES + tx - LANES]
                if m == "P96":
                    T.cuda.warp_sync()
                else:
                    T.ptx.bar.sync(T.uint32(1), T.uint32(2 * LANES))
                if tx == LANES:
                    arrive(bars[SEEN + k % SLOTS])

    x, f = drawn(TRIPS, LANES, seed=seed), drawn(TRIPS, LANES, seed=seed + 1)
    return Kernel(main, {"X": x, "F": f}, {"Y": x, "W": f})


def registers(mutation: str | None = None, *, blocks: int = 1, seed: int = 0) -> Kernel:
    """Build it: Y = 1 by four warp groups, two of which leave registers to the others.

    `blocks` have room on a multiprocessor.
    """
    m = mutation
    blocks = 2 if m == "P99" else blocks
    more = 240 if m == "P98" else 104 if blocks == 2 and m != "P99" else 224

    @hand_threaded(512, min_blocks=blocks)
    def main(Y: F32[512], tx):
        if tx < 256:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](24)
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](more)
        Y[tx] = T.float32(1)

    return Kernel(main, {}, {"Y": np.ones(512)})
