"""H grid barrier: four CTAs meet twice by a counter in global memory that only goes up.

Each CTA adds one by thread 0, with release, and polls with acquire until the counter holds the
number of CTAs times the generation. Rows cross from CTA to CTA between the meetings.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim.hand_threaded import F32, U32, Local, hand_threaded

from .common import Kernel

ROW, CTAS, TURNS = 64, 4, 2


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: after each turn a CTA holds the row of its right neighbour; two buffers."""
    m = mutation
    scope = "cta" if m == "H27" else "gpu"
    add = f"red.{'relaxed' if m == 'H26' else 'release'}.{scope}.global.add.u32"
    look = f"ld.{'relaxed' if m == 'H28' else 'acquire'}.{scope}.global.u32"
    met = CTAS - 1 if m == "H23" else CTAS

    @hand_threaded(ROW, grid=CTAS)
    def main(
        X: F32[CTAS, ROW], W: F32[TURNS, CTAS, ROW], G: U32[1], Y: F32[CTAS, ROW],
        bx, tx, seen: Local[U32], held: Local[F32],
    ):  # fmt: skip
        held[0] = X[bx, tx]
        for turn in T.serial(TURNS):
            W[0 if m == "H29" else turn, bx, tx] = held[0]
            if m != "H25":
                T.tvm_storage_sync("shared")
            if tx == 0:
                T.ptx[add](T.address_of(G[0]), T.uint32(1))
                seen[0] = T.uint32(0)
                while seen[0] < T.Cast("uint32", met * (1 if m == "H24" else turn + 1)):
                    T.ptx[look](seen[0], T.address_of(G[0]))
            T.tvm_storage_sync("shared")
            held[0] = W[0 if m == "H29" else turn, (bx + 1) % CTAS, tx]
        Y[bx, tx] = held[0]

    x = np.random.default_rng(seed).integers(-8, 9, (CTAS, ROW)).astype("float32")
    inputs = {"X": x, "G": np.zeros(1, "uint32")}
    if m == "H29":
        inputs["W"] = np.zeros((TURNS, CTAS, ROW), "float32")
    return Kernel(main, inputs, {"Y": np.roll(x, -TURNS, 0).astype("float64")}, grid=CTAS)
