"""Small right kernels, one legal but suspicious thing each: controls that must stay clean."""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U64, Shared, hand_threaded

from .common import Kernel

WARPS = 2
THREADS = 32 * WARPS
ROW = 128  # elements


def different_phases(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """N9: two warps wait on one barrier, each for another phase, one of them late."""

    @hand_threaded(96, smem=256)
    def main(Y: F32[2], tx, slot: Shared[F32], turn: Shared[U64]):
        ptx.set_up(tx, (turn[16], 1), (turn[17], 1))
        if tx == 0:
            slot[0] = T.float32(1)
            ptx.arrive(turn[16])
            # the second phase begins when the first one has been seen
            ptx.wait(turn[17], 0)
            slot[1] = T.float32(2)
            ptx.arrive(turn[16])
        if tx == 32:
            ptx.wait(turn[16], 0)
            ptx.arrive(turn[17])
            Y[0] = slot[0]
        if tx == 64:
            ptx.wait(turn[17], 0)
            ptx.wait(turn[16], 1)
            Y[1] = slot[1]

    return Kernel(main, {}, {"Y": np.array([1.0, 2.0])})


def all_wait(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """N10: every thread waits while the copy is in flight, which is no deadlock."""

    @hand_threaded(ROW, smem=640)
    def main(X: F32[ROW], Y: F32[ROW], tx, row: Shared[F32], full: Shared[U64]):
        ptx.set_up(tx, (full[64], 1))
        if tx == 0:
            ptx.expect_and_load(row[0], X[0], ROW * 4, full[64])
        ptx.wait(full[64], 0)
        Y[tx] = row[tx]

    x = np.random.default_rng(seed).integers(-8, 9, ROW).astype("float32")
    return Kernel(main, {"X": x}, {"Y": x.astype("float64")})


def arrive_drop(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """N11: a warp leaves a barrier for good by arrive_drop; later phases need one arrival less."""

    @hand_threaded(96, smem=256)
    def main(Y: F32[4], tx, slot: Shared[F32], bars: Shared[U64]):
        ptx.set_up(tx, (bars[16], 2), (bars[17], 1))
        if tx == 0:
            for k in T.serial(4):
                if k > 0:
                    ptx.wait(bars[17], (k + 1) % 2)
                slot[k] = T.Cast("float32", k)
                ptx.arrive(bars[16])
        if tx == 32:
            T.ptx.mbarrier.arrive_drop.shared.b64(T.address_of(bars[16]))
        if tx == 64:
            for k in T.serial(4):
                ptx.wait(bars[16], k % 2)
                Y[k] = slot[k]
                ptx.arrive(bars[17])

    return Kernel(main, {}, {"Y": np.arange(4.0)})


def fence_by_issuer(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """N6: the thread that issues the store fences after the barrier, the writers do not."""

    @hand_threaded(ROW, smem=512)
    def main(X: F32[ROW], Y: F32[ROW], tx, row: Shared[F32, ROW]):
        row[tx] = X[tx]
        T.tvm_storage_sync("shared")
        if tx == 0:
            T.ptx.fence.proxy.async_.shared__cta()
            ptx.store_and_wait(Y[0], row[0], ROW * 4, read=True)

    x = np.random.default_rng(seed).integers(-8, 9, ROW).astype("float32")
    return Kernel(main, {"X": x}, {"Y": x.astype("float64")})
