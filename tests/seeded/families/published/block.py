"""Threads of one CTA: a reduction through scratch memory, counts by atomics, named barriers.

`reduce`: warps add up in shared memory, then all threads add the warps' sums. `count`: a histogram
in shared memory. `handshake`: two warps write rows, a third reads them; barriers alternate, so that
a row ahead is told on the other one.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim.hand_threaded import F32, I32, U32, Local, Shared, hand_threaded

from ...golden.common import Kernel
from .pieces import drawn

THREADS, WARPS, TRIPS = 128, 4, 2


def reduce(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[k] = X[k] + the sum of X[k]."""
    m = mutation

    @T.inline
    def meet():
        if m == "P76":
            T.ptx["fence.acq_rel.cta"]()
        else:
            T.tvm_storage_sync("shared")

    @hand_threaded(THREADS, smem=640)
    def main(
        X: F32[TRIPS, THREADS], Y: F32[TRIPS, THREADS], tx, sums: Shared[F32], acc: Local[F32],
    ):  # fmt: skip
        for k in T.serial(TRIPS):
            sums[tx] = X[k, tx]
            if m != "P77":
                T.cuda.warp_sync()
            for e in T.unroll(5):
                if tx % 32 < T.shift_right(16, e):
                    sums[tx] = sums[tx] + sums[tx + T.shift_right(16, e)]
                if m != "P77":
                    T.cuda.warp_sync()
            if tx % 32 == 0:
                sums[THREADS + tx // 32] = sums[tx]
            if m == "P78":  # half of the threads meet here, half in the other branch
                if tx < 64:
                    T.tvm_storage_sync("shared")
                else:
                    T.tvm_storage_sync("shared")
            elif m == "P79":
                if tx < 64:
                    T.tvm_storage_sync("shared")
            elif m == "P80":
                if tx % 32 == 0:
                    T.tvm_storage_sync("shared")
            else:
                meet()
            acc[0] = X[k, tx]
            for w in T.serial(WARPS):
                acc[0] = acc[0] + sums[THREADS + w]
            Y[k, tx] = acc[0]
            if m != "P75":
                T.tvm_storage_sync("shared")

    x = drawn(TRIPS, THREADS, seed=seed)
    return Kernel(main, {"X": x}, {"Y": x + x.sum(1, keepdims=True)})


def count(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[v] = how often v stands in B."""
    m = mutation

    @hand_threaded(128, smem=256)
    def main(B: I32[100], Y: U32[64], tx, counts: Shared[U32], old: Local[U32]):
        if tx >= 64:
            counts[tx - 64] = T.uint32(0)
        if m != "P81":
            T.tvm_storage_sync("shared")
        if tx <= 100 if m == "P83" else tx < 100:
            if m == "P82":
                counts[B[tx]] = counts[B[tx]] + T.uint32(1)
            else:
                T.ptx["atom.relaxed.cta.shared.add.u32"](
                    old[0], T.address_of(counts[B[tx]]), T.uint32(1)
                )
        if m != "P84":
            T.tvm_storage_sync("shared")
        if tx < 64:
            Y[tx] = counts[tx]

    b = np.random.default_rng(seed).integers(0, 64, 100).astype("int32")
    return Kernel(main, {"B": b}, {"Y": np.bincount(b, minlength=64)})


def handshake(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[k] = X[k] with its two halves swapped; four rows, two slots."""
    m = mutation
    rows, full, empty = 4, 1, 3
    all_three = 96
    counts = {"P86": 128, "P87": 64}.get(m or "", all_three)

    @T.inline
    def meet_writers(tx):  # each warp in a branch of its own
        if tx < 32:
            if m == "P89":
                T.ptx.bar.sync(T.uint32(5), T.uint32(64))
            else:
                T.ptx.barrier.sync(T.uint32(5), T.uint32(64))
        else:
            if m == "P89":
                T.ptx.bar.sync(T.uint32(5), T.uint32(64))
            else:
                T.ptx.barrier.sync(T.uint32(5), T.uint32(64))

    @hand_threaded(96, smem=512)
    def main(X: F32[rows, 64], Y: F32[rows, 64], tx, slot: Shared[F32]):
        if tx < 64:
            for k in T.serial(rows):
                if m != "P90" or tx < 32 or k < rows - 1:
                    if k >= 2:
                        T.ptx.bar.sync(
                            T.Cast("uint32", (full if m == "P88" else empty) + k % 2),
                            T.uint32(all_three),
                        )
                    slot[k % 2 * 64 + tx] = X[k, tx]
                    meet_writers(tx)
                    T.ptx.bar.arrive(
                        T.Cast("uint32", full + (0 if m == "P85" else k % 2)),
                        T.uint32(counts),
                    )
        else:
            for k in T.serial(rows):
                T.ptx.bar.sync(
                    T.Cast("uint32", full + (0 if m == "P85" else k % 2)), T.uint32(counts)
                )
                for h in T.serial(2):
                    Y[k, h * 32 + tx - 64] = slot[k % 2 * 64 + (1 - h) * 32 + tx - 64]
                if k < rows - 2:
                    T.ptx.bar.arrive(
                        T.Cast("uint32", (full if m == "P88" else empty) + k % 2),
                        T.uint32(all_three),
                    )

    x = drawn(rows, 64, seed=seed)
    return Kernel(main, {"X": x}, {"Y": np.roll(x, 32, 1)})
