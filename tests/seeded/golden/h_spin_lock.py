"""H spin lock: four CTAs add rows to one accumulator in global memory, one at a time.

Thread 0 takes the lock by compare-and-swap with acquire and gives it back by a store with release;
the threads of its CTA meet behind the one and before the other.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim.hand_threaded import F32, U32, Local, hand_threaded

from .common import Kernel

ROW, CTAS = 64, 4


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y = the sum of the rows of X; L is the lock."""
    m = mutation
    scope = "cta" if m == "H19" else "gpu"
    take = (
        "atom.relaxed.gpu.global.cas.b32" if m == "H16" else f"atom.acquire.{scope}.global.cas.b32"
    )
    give = "st.relaxed.gpu.global.u32" if m == "H17" else f"st.release.{scope}.global.u32"

    @hand_threaded(ROW, grid=CTAS)
    def main(X: F32[CTAS, ROW], L: U32[1], Y: F32[ROW], bx, tx, old: Local[U32]):
        if tx == 0:
            old[0] = T.uint32(1)
            while old[0] != T.uint32(0):
                T.ptx[take](old[0], T.address_of(L[0]), T.uint32(0), T.uint32(1))
        if m != "H18":
            T.tvm_storage_sync("shared")
        Y[tx] = Y[tx] + X[bx, tx]
        if m != "H20":
            T.tvm_storage_sync("shared")
        if tx == 0 and (m != "H21" or bx != 2):
            T.ptx[give](T.address_of(L[0]), T.uint32(1 if m == "H22" else 0))

    x = np.random.default_rng(seed).integers(-8, 9, (CTAS, ROW)).astype("float32")
    inputs = {"X": x, "L": np.zeros(1, "uint32"), "Y": np.zeros(ROW, "float32")}
    return Kernel(main, inputs, {"Y": x.sum(0, dtype="float64")}, grid=CTAS)
