"""CTAs that tell each other by counters and flags in global memory.

`last`: each leaves a row, the one that counts itself last adds the rows up. `flag`: one stores a
row and raises a flag, the other polls it and loads the row by a bulk copy.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U32, U64, Local, Shared, hand_threaded

from ...golden.common import Kernel
from .pieces import copy_in, copy_out, drawn, expect, init

ROW, BYTES, CTAS = 64, 256, 3


def last(
    mutation: str | None = None, *, fence: str = "writers", how: str = "stores", seed: int = 0
) -> Kernel:
    """Build it: Y = the sum of the rows of X; W holds rows, C counts.

    `fence`: all writers fence before they meet, or the thread that counts does behind the meeting.
    `how`: the rows are stored by all threads, or by a bulk copy of the thread that counts.
    """
    m = mutation
    how = "copy" if m == "P52" else how
    leader_fences = (fence == "leader" or how == "copy") and m != "P52"
    scope = "cta" if m == "P53" else "gpu"

    @hand_threaded(ROW, grid=CTAS, smem=272)
    def main(
        X: F32[CTAS, ROW], W: F32[CTAS, ROW], C: U32[1], Y: F32[ROW],
        bx, tx, row: Shared[F32], place: Shared[U32], old: Local[U32], acc: Local[F32],
    ):  # fmt: skip
        if how == "copy":
            row[tx] = X[bx, tx]
            T.ptx.fence.proxy.async_.shared__cta()
        else:
            W[bx, tx] = X[bx, tx]
            if m == "P51":
                if tx == 0:
                    T.cuda.thread_fence()
            elif m == "P54":
                T.ptx["fence.acq_rel.cta"]()
            elif fence == "writers" and m != "P50":
                T.cuda.thread_fence()
        T.tvm_storage_sync("shared")
        if tx == 0:
            if how == "copy":
                copy_out(W[bx, 0], row[0], BYTES)
                T.ptx["cp.async.bulk.wait_group"](0)
            if leader_fences:
                T.cuda.thread_fence()
            T.ptx[f"atom.relaxed.{scope}.global.add.u32"](old[0], T.address_of(C[0]), T.uint32(1))
            place[64] = old[0]
            if fence == "leader":
                T.cuda.thread_fence()
        T.tvm_storage_sync("shared")
        if place[64] == T.uint32(CTAS - 1):
            if m != "P49" and fence != "leader":
                T.cuda.thread_fence()
            acc[0] = T.float32(0)
            for i in T.serial(CTAS):
                acc[0] = acc[0] + W[i, tx]
            Y[tx] = acc[0]

    x = drawn(CTAS, ROW, seed=seed)
    inputs = {"X": x, "C": np.zeros(1, "uint32")}
    return Kernel(main, inputs, {"Y": x.sum(0), "C": np.full(1, CTAS)}, grid=CTAS)


def flag(mutation: str | None = None, *, poll: str = "acquire", seed: int = 0) -> Kernel:
    """Build it: Y = 2 X by way of W. `poll`: with acquire, or relaxed with a fence behind it."""
    m = mutation
    scope = "cta" if m == "P59" else "gpu"
    add = f"red.{'relaxed' if m == 'P58' else 'release'}.{scope}.global.add.u32"
    look = f"ld.{'relaxed' if m == 'P56' or poll == 'relaxed' else 'acquire'}.{scope}.global.u32"

    @hand_threaded(ROW, grid=2, smem=384)
    def main(
        X: F32[ROW], W: F32[ROW], S: U32[1], Y: F32[ROW],
        bx, tx, row: Shared[F32], bars: Shared[U64], seen: Local[U32],
    ):  # fmt: skip
        if tx == 0:
            init(bars, 40, 1, 1)
            T.ptx.fence.mbarrier_init.release.cluster()
        T.tvm_storage_sync("shared")
        if bx == 0:
            W[tx] = X[tx] * T.float32(2)
            if m != "P60":
                T.tvm_storage_sync("shared")
            if tx == 0:
                T.ptx[add](T.address_of(S[0]), T.uint32(1))
        else:
            if tx == 0:
                seen[0] = T.uint32(0)
                while seen[0] < T.uint32(2 if m == "P57" else 1):
                    T.ptx[look](seen[0], T.address_of(S[0]))
                if poll == "relaxed":
                    T.cuda.thread_fence()
                if m != "P55":
                    T.ptx.fence.proxy.async_.global_()
                expect(bars[40], BYTES)
                copy_in(row[0], W[0], bars[40], BYTES)
            T.cuda.warp_sync()
            ptx.wait(bars[40], 0)
            Y[tx] = row[tx]

    x = drawn(ROW, seed=seed)
    return Kernel(main, {"X": x, "S": np.zeros(1, "uint32")}, {"Y": 2 * x}, grid=2)
