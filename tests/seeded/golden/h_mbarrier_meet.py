"""H mbarrier meet: an mbarrier as a plain barrier of four warps, three meetings.

Every warp arrives by one lane, once its lanes have met, and waits for the phase by its parity.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U64, Local, Shared, hand_threaded

from .common import Kernel

THREADS, TURNS = 128, 3


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y = X turned by 32 places, three times; two rows of shared memory in turn."""
    m = mutation
    count = {"H31": 3, "H32": 128}.get(m or "", 4)

    @T.inline
    def meet(bar, tx, turn):
        if m == "H37":
            if tx % 32 < 16:
                T.cuda.warp_sync()
        elif m != "H34":
            T.cuda.warp_sync()
        if m == "H35":  # in divergent code: one side of the warp and the other
            if tx % 32 < 16:
                T.tvm_storage_sync("shared")
        if tx % 32 == 0:
            ptx.arrive(bar)
        if m == "H33":  # the one lane that arrived waits
            if tx % 32 == 0:
                ptx.wait(bar, turn % 2)
        else:
            ptx.wait(bar, 0 if m == "H30" else turn % 2)

    @hand_threaded(THREADS, smem=1152)
    def main(
        X: F32[THREADS], Y: F32[THREADS],
        tx, rows: Shared[F32], bars: Shared[U64], held: Local[F32],
    ):  # fmt: skip
        if tx == 0:
            ptx.init_mbarrier(bars[128], count)
        T.tvm_storage_sync("shared")
        held[0] = X[tx]
        for turn in T.serial(TURNS):
            rows[(0 if m == "H36" else turn % 2 * THREADS) + tx] = held[0]
            meet(bars[128], tx, turn)
            held[0] = rows[(0 if m == "H36" else turn % 2 * THREADS) + (tx + 32) % THREADS]
        Y[tx] = held[0]

    x = np.random.default_rng(seed).integers(-8, 9, THREADS).astype("float32")
    return Kernel(main, {"X": x}, {"Y": np.roll(x, -32 * TURNS).astype("float64")})
