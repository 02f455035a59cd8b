"""Tensors in global memory that copies read, write and add to, and threads write besides.

A row of U is loaded, then changed; cp.async brings another row; their sum is added to S and stored
to Z by bulk copies, and the first element of Z is changed.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U64, Shared, hand_threaded

from ...golden.common import REDUCE_1D, Kernel
from .pieces import copy_in, copy_out, drawn, expect, init

ROW, BYTES = 64, 256
WAIT, READ = "cp.async.bulk.wait_group", "cp.async.bulk.wait_group.read"


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Z = U + V, S += Z, U = 7, R = S, then Z[0] = -1."""
    m = mutation
    waits = READ if m == "P92" else WAIT

    @hand_threaded(ROW, smem=640)
    def main(
        U: F32[ROW], V: F32[ROW], S: F32[ROW], Z: F32[ROW], R: F32[ROW],
        tx, rows: Shared[F32], bars: Shared[U64],
    ):  # fmt: skip
        if tx == 0:
            init(bars, 64, 1, 1)
            T.ptx.fence.mbarrier_init.release.cluster()
            expect(bars[64], BYTES)
            copy_in(rows[0], U[0], bars[64], BYTES)
        T.tvm_storage_sync("shared")
        T.ptx["cp.async.ca.shared.global"](T.address_of(rows[ROW + tx]), T.address_of(V[tx]), 4)
        T.ptx.cp.async_.commit_group()
        T.ptx["cp.async.wait_group"](0)
        if m == "P91":
            U[tx] = T.float32(7)
        ptx.wait(bars[64], 0)
        if m != "P91":
            U[tx] = T.float32(7)
        rows[tx] = rows[tx] + rows[ROW + tx]
        if m != "P93":
            T.ptx.fence.proxy.async_.shared__cta()
        T.tvm_storage_sync("shared")
        if tx == 0:
            T.ptx[REDUCE_1D](T.address_of(S[0]), T.address_of(rows[0]), T.uint32(BYTES))
            T.ptx.cp.async_.bulk.commit_group()
            copy_out(Z[0], rows[0], BYTES)
        if tx == (1 if m == "P94" else 0):
            T.ptx[waits](0)
        if m == "P94":
            T.cuda.warp_sync()
        if tx == 0:
            Z[0] = T.float32(-1)
        T.tvm_storage_sync("shared")
        R[tx] = S[tx]

    u, v, s = drawn(ROW, seed=seed), drawn(ROW, seed=seed + 1), drawn(ROW, seed=seed + 2)
    z = u + v
    z[0] = -1
    total = s + u + v
    inputs = {"U": u, "V": v, "S": s}
    return Kernel(main, inputs, {"U": np.full(ROW, 7), "S": total, "Z": z, "R": total})
