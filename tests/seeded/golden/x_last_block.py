"""X last block: four CTAs leave a partial row each, the one that counts itself last adds them up.

Every thread fences its own row; thread 0 counts; the last CTA's threads fence again and read all.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim.hand_threaded import F32, U32, Local, Shared, hand_threaded

from .common import Kernel

ROW, CTAS = 64, 4


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y = the sum of the rows of X; W holds the partial rows, C counts."""
    m = mutation
    add = f"atom.relaxed.{'cta' if m == 'X11' else 'gpu'}.global.add.u32"

    @hand_threaded(ROW, grid=CTAS, smem=16)
    def main(
        X: F32[CTAS, ROW], W: F32[CTAS, ROW], C: U32[1], Y: F32[ROW],
        bx, tx, place: Shared[U32], old: Local[U32], acc: Local[F32],
    ):  # fmt: skip
        W[bx, tx] = X[bx, tx]
        if m != "X08":
            T.cuda.thread_fence()
        if m != "X10":
            T.tvm_storage_sync("shared")
        if tx == 0:
            T.ptx[add](old[0], T.address_of(C[0]), T.uint32(1))
            place[0] = old[0]
        if m != "X12":
            T.tvm_storage_sync("shared")
        if place[0] == T.uint32(CTAS if m == "X13" else CTAS - 2 if m == "X14" else CTAS - 1):
            if m != "X09":
                T.cuda.thread_fence()
            acc[0] = T.float32(0)
            for i in T.serial(CTAS):
                acc[0] = acc[0] + W[i, tx]
            Y[tx] = acc[0]

    x = np.random.default_rng(seed).integers(-8, 9, (CTAS, ROW)).astype("float32")
    inputs = {"X": x, "C": np.zeros(1, "uint32")}
    expected = {"Y": x.sum(0, dtype="float64"), "C": np.full(1, CTAS, "float64")}
    return Kernel(main, inputs, expected, grid=CTAS)
