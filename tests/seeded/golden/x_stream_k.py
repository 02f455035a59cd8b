"""X stream-K: three CTAs share the sums of two tiles; a tile's first CTA fixes up what others left.

CTA 0 sums the first two thirds of tile 0, CTA 1 the rest of it and a third of tile 1, CTA 2 the
rest of tile 1. Who begins a tile in its middle leaves a partial row in the workspace and raises the
flag of its own; who begins it at its start waits for that flag, adds, and stores the tile.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U32, Local, hand_threaded

from .common import Kernel

ROW, CTAS, STEPS = 64, 3, 3  # steps of a tile; two of six for each CTA


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[tile] = the sum of X[tile, step] over its steps."""
    m = mutation
    scope = "cta" if m == "X18" else "gpu"

    @T.inline
    def leave_partial(W, F, acc, bx, tx):
        if m == "X15":  # the flag comes first
            if tx == 0:
                T.ptx["st.release.gpu.global.u32"](T.address_of(F[bx]), T.uint32(1))
            T.tvm_storage_sync("shared")
        W[bx, tx] = acc[0]
        if m != "X16":
            T.tvm_storage_sync("shared")
        if m != "X15":
            if tx == 0:
                T.ptx[f"st.release.{scope}.global.u32"](T.address_of(F[bx]), T.uint32(1))

    @T.inline
    def fix_up(W, F, acc, seen, owner, tx):
        flag = T.meta_var(2 if m == "X20" else owner)  # X20: both wait for the last CTA
        if m != "X17":
            if tx == 0:
                ptx.poll(f"ld.acquire.{scope}.global.u32", seen, F[flag])
        if m != "X19":
            T.tvm_storage_sync("shared")
        acc[0] = acc[0] + W[owner, tx]

    @hand_threaded(ROW, grid=CTAS)
    def main(
        X: F32[2, STEPS, ROW], W: F32[CTAS, ROW], F: U32[CTAS], Y: F32[2, ROW],
        bx, tx, acc: Local[F32], seen: Local[U32],
    ):  # fmt: skip
        if bx == 0:
            acc[0] = X[0, 0, tx] + X[0, 1, tx]
            fix_up(W, F, acc, seen, 1, tx)
            Y[0, tx] = acc[0]
        elif bx == 1:
            if m == "X21":  # its own tile first: waits for CTA 2 before it tells CTA 0
                acc[0] = X[1, 0, tx]
                fix_up(W, F, acc, seen, 2, tx)
                Y[1, tx] = acc[0]
            acc[0] = X[0, 2, tx]
            leave_partial(W, F, acc, bx, tx)
            if m != "X21":
                acc[0] = X[1, 0, tx]
                fix_up(W, F, acc, seen, 2, tx)
                Y[1, tx] = acc[0]
        else:
            if m == "X21":  # and CTA 2 waits for CTA 1
                if tx == 0:
                    ptx.poll("ld.acquire.gpu.global.u32", seen, F[1])
            acc[0] = X[1, 1, tx] + X[1, 2, tx]
            leave_partial(W, F, acc, bx, tx)

    x = np.random.default_rng(seed).integers(-8, 9, (2, STEPS, ROW)).astype("float32")
    inputs = {"X": x, "W": np.zeros((CTAS, ROW), "float32"), "F": np.zeros(CTAS, "uint32")}
    return Kernel(main, inputs, {"Y": x.sum(1, dtype="float64")}, grid=CTAS)
