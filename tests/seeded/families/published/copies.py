"""Rows fetched two trips ahead by cp.async into three slots; a result staged where they were.

Each row has two halves, A and B, copied by the thread's own copies; B is read reversed, so by other
threads than copied it.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim.hand_threaded import F32, Local, Shared, hand_threaded

from ...golden.common import Kernel
from .pieces import drawn

ROW, TRIPS, AHEAD = 64, 5, 2
COPY = "cp.async.ca.shared.global"


def build(mutation: str | None = None, *, groups: int = 1, seed: int = 0) -> Kernel:
    """Build it: Y[k] = A[k] * reversed B[k], Z = reversed sum of A. `groups` of copies."""
    m = mutation
    groups = 2 if m == "P61" else groups
    slots = 2 if m == "P65" else 3
    pending = groups * (AHEAD - 1) + (m == "P61")

    @T.inline
    def fetch(rows, A, B, k, tx):
        T.ptx[COPY](T.address_of(rows[k % slots * 128 + tx]), T.address_of(A[k, tx]), 4)
        if groups == 2:
            T.ptx.cp.async_.commit_group()
        T.ptx[COPY](T.address_of(rows[k % slots * 128 + 64 + tx]), T.address_of(B[k, tx]), 4)

    @hand_threaded(ROW, smem=1536)
    def main(
        A: F32[TRIPS, ROW], B: F32[TRIPS, ROW], Y: F32[TRIPS, ROW], Z: F32[ROW],
        tx, rows: Shared[F32], acc: Local[F32],
    ):  # fmt: skip
        acc[0] = T.float32(0)
        for k in T.serial(AHEAD):
            fetch(rows, A, B, k, tx)
            T.ptx.cp.async_.commit_group()
        for k in T.serial(TRIPS):
            if m not in ("P62", "P63"):
                T.ptx["cp.async.wait_group"](pending)
            T.tvm_storage_sync("shared")
            if m == "P63":
                T.ptx["cp.async.wait_group"](pending)
            if k + AHEAD < TRIPS:
                fetch(rows, A, B, k + AHEAD, tx)
            elif m == "P64":  # past the end copies of no bytes fill the slot with zeros
                T.ptx[COPY](
                    T.address_of(rows[(k + AHEAD) % slots * 128 + tx]),
                    T.address_of(A[TRIPS - 1, tx]), 4, T.uint32(0),
                )  # fmt: skip
            if m == "P66":
                if k + AHEAD == TRIPS:
                    T.ptx.cp.async_.commit_group()
            elif groups == 2:
                T.ptx.cp.async_.commit_group()
                if k + AHEAD >= TRIPS:
                    T.ptx.cp.async_.commit_group()
            else:
                T.ptx.cp.async_.commit_group()
            Y[k, tx] = rows[k % slots * 128 + tx] * rows[k % slots * 128 + 127 - tx]
            acc[0] = acc[0] + rows[k % slots * 128 + tx]
        rows[(TRIPS + 1) % slots * 128 + 63 - tx] = acc[0]
        T.tvm_storage_sync("shared")
        Z[tx] = rows[(TRIPS + 1) % slots * 128 + tx]

    a, b = drawn(TRIPS, ROW, seed=seed), drawn(TRIPS, ROW, seed=seed + 1)
    return Kernel(main, {"A": a, "B": b}, {"Y": a * b[:, ::-1], "Z": np.flip(a.sum(0))})
