"""H named ring: a producer warp hands rows to a consumer warp by two named barriers.

Barrier 1 says that the row is full, barrier 2 that it is empty: the one side arrives, the other
waits, 64 threads in all. A pair of barriers serves all trips.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim.hand_threaded import F32, Shared, hand_threaded

from .common import Kernel

WARP, TRIPS = 32, 4
FULL, EMPTY = 1, 2


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[k] = 2 X[k] reversed; the second consumer warp of H06 takes part uninvited."""
    m = mutation
    threads = 96 if m == "H06" else 64

    @hand_threaded(threads, smem=128)
    def main(X: F32[TRIPS, WARP], Y: F32[TRIPS, WARP], tx, row: Shared[F32, WARP]):
        if tx < WARP:
            for k in T.serial(TRIPS):
                if m != "H03":
                    if k > 0:
                        T.ptx.bar.sync(T.uint32(EMPTY), T.uint32(96 if m == "H02" else 64))
                row[tx] = X[k, tx] * T.float32(2)
                if m == "H38":
                    if tx == 0:
                        T.ptx.bar.arrive(T.uint32(FULL), T.uint32(64))
                else:
                    T.ptx.bar.arrive(T.uint32(FULL), T.uint32(64))
        else:
            for k in T.serial(TRIPS):
                if m == "H07":  # waits for the row on the barrier of the other direction
                    T.ptx.bar.sync(T.uint32(EMPTY), T.uint32(64))
                else:
                    T.ptx.bar.sync(T.uint32(FULL), T.uint32(64))
                if m == "H04":
                    if k < TRIPS - 1:
                        T.ptx.bar.arrive(T.uint32(EMPTY), T.uint32(64))
                if tx < 64:
                    Y[k, tx - WARP] = row[63 - tx]
                if m == "H01":  # one warp arrives twice in the end
                    T.ptx.bar.arrive(T.uint32(EMPTY), T.uint32(64))
                elif m != "H04":
                    if k < TRIPS - 1:
                        T.ptx.bar.arrive(
                            T.uint32(FULL if m == "H05" else EMPTY),
                            T.uint32(96 if m == "H02" else 64),
                        )
            if m == "H01":
                T.ptx.bar.arrive(T.uint32(EMPTY), T.uint32(64))

    x = np.random.default_rng(seed).integers(-8, 9, (TRIPS, WARP)).astype("float32")
    return Kernel(main, {"X": x}, {"Y": 2 * x[:, ::-1].astype("float64")})
