"""Rows staged in shared memory and stored by bulk copies: two slots in turn over tiles.

Sixty-four threads write a row, thread 0 stores it. Behind the loop a sum goes out the same way, and
all threads read back what thread 0 has waited for.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, Local, Shared, hand_threaded

from ...golden.common import Kernel
from .pieces import copy_out, drawn

ROW, BYTES, SLOTS = 64, 256, 2


def build(
    mutation: str | None = None, *, tiles: int = 2, parts: int = 3, fence: str = "writers",
    waits: str = "once", seed: int = 0,
) -> Kernel:  # fmt: skip
    """Build it: Y[i] = 2 X[i], Z = the sum of the rows plus 1, R = Z + the last row of Y.

    `fence`: every writer fences, or thread 0 behind the barrier. `waits`: once for all stores, or
    several times, for fewer each time or more.
    """
    m = mutation
    if m == "P22":
        tiles = 0
    total = tiles * parts
    rows = max(total, 1)
    in_loop = fence == "writers" and m not in ("P17", "P18", "P21")
    behind_loop = in_loop and m != "P22"

    @T.inline
    def publish(fences):
        if fences:
            T.ptx.fence.proxy.async_.shared__cta()
        if m != "P17":
            T.tvm_storage_sync("shared")

    @T.inline
    def store(target, row, tx):
        if tx == 0:
            if fence == "issuer":
                T.ptx.fence.proxy.async_.shared__cta()
            if m == "P20":
                ptx.store_bytes(target, row, BYTES)
            else:
                copy_out(target, row, BYTES - 4 if m == "P28" else BYTES)

    @hand_threaded(ROW, smem=3 * BYTES)
    def main(
        X: F32[rows, ROW], Y: F32[rows, ROW], Z: F32[ROW], R: F32[ROW],
        tx, stage: Shared[F32, 3 * ROW], acc: Local[F32],
    ):  # fmt: skip
        acc[0] = T.float32(1)
        for t, q in T.grid(tiles, parts):
            if m != "P20":
                if tx == (32 if m == "P23" else 0):
                    T.ptx["cp.async.bulk.wait_group.read"](1)
            if m != "P16":
                T.tvm_storage_sync("shared")
            if m == "P21":
                T.ptx.fence.proxy.async_.shared__cta()
            stage[(q if m == "P19" else t * parts + q) % SLOTS * ROW + tx] = X[
                t * parts + q, tx
            ] * T.float32(2)
            acc[0] = acc[0] + X[t * parts + q, tx]
            publish(in_loop)
            store(
                Y[t * parts + q, 0],
                stage[(q if m == "P19" else t * parts + q) % SLOTS * ROW],
                tx,
            )
        if m == "P20":
            if tx == 0:
                T.ptx.cp.async_.bulk.commit_group()
                T.ptx["cp.async.bulk.wait_group.read"](0)
        stage[(total + 1) % SLOTS * ROW + tx if m == "P27" else SLOTS * ROW + tx] = acc[0]
        publish(behind_loop)
        store(Z[0], stage[(total + 1) % SLOTS * ROW if m == "P27" else SLOTS * ROW], tx)
        if tx == 0:
            if waits == "again":
                T.ptx["cp.async.bulk.wait_group"](1)
                T.ptx["cp.async.bulk.wait_group.read"](2)
            if m == "P24":
                T.ptx["cp.async.bulk.wait_group.read"](0)
            elif m == "P25":
                T.ptx["cp.async.bulk.wait_group"](1)
            else:
                T.ptx["cp.async.bulk.wait_group"](0)
        if m != "P26":
            T.tvm_storage_sync("shared")
        R[tx] = Z[tx] + Y[rows - 1, tx]
        if m == "P25":
            if tx == 0:
                T.ptx["cp.async.bulk.wait_group"](0)

    x = drawn(rows, ROW, seed=seed)
    y = 2 * x if total else np.zeros_like(x)
    z = 1 + x.sum(0) * (total > 0)
    inputs = {"X": x} if total else {"X": x, "Y": y}
    return Kernel(main, inputs, {"Y": y, "Z": z, "R": z + y[-1]})
