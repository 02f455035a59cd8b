"""O helpers: a softmax of one row by the device functions that TVM prints for reductions.

Their bodies are known, so that misuse is found: scratch memory used twice without a meeting, a part
of the block or of a warp that calls them, a part of a warp that meets.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim.hand_threaded import F32, Local, Shared, hand_threaded

from .common import Kernel

THREADS = 128
WARPS = THREADS // 32


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y = X - max(X) + sum(X), Z = the sum of each half warp."""
    m = mutation

    @hand_threaded(THREADS, smem=64)
    def main(
        X: F32[THREADS], Y: F32[THREADS], Z: F32[THREADS],
        tx, scratch: Shared[F32], most: Local[F32, 3],
    ):  # fmt: skip
        if m == "O12":
            if tx < 64:
                most[0] = T.cuda.cta_reduce(X[tx], "max", WARPS, T.address_of(scratch[0]))
        else:
            most[0] = T.cuda.cta_reduce(X[tx], "max", WARPS, T.address_of(scratch[0]))
        if m != "O11":
            T.cuda.cta_sync()
        most[1] = T.cuda.cta_reduce(
            X[tx], "sum", WARPS, T.address_of(scratch[8 if m == "O14" else 0])
        )
        if m == "O13":
            if tx % 32 < 24:
                most[2] = T.cuda.warp_reduce(X[tx], "sum", 16)
        else:
            most[2] = T.cuda.warp_reduce(X[tx], "sum", 16)
        Y[tx] = X[tx] - most[0] + most[1]
        if m == "O13":
            if tx % 32 < 24:
                Z[tx] = most[2]
        elif m == "O14":  # the numbers that the first warp left for the maximum
            Z[tx] = most[2] + scratch[4 + tx % 4]
        else:
            Z[tx] = most[2]

    x = np.random.default_rng(seed).integers(-8, 9, THREADS).astype("float32")
    wide = x.astype("float64")
    sums = wide.reshape(-1, 16).sum(1).repeat(16)
    return Kernel(main, {"X": x}, {"Y": wide - wide.max() + wide.sum(), "Z": sums})
