"""CTAs that tell each other by counters and flags in global memory.

`last`: each leaves a row, the one that counts itself last adds the rows up. `flag`: one stores a
row and raises a flag, the other polls it and loads the row by a bulk copy.
"""


# thread by the kernel; nesting keeps them apart

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

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

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((CTAS, ROW), "float32"),
        W: T.Buffer((CTAS, ROW), "float32"),
        C: T.Buffer((1,), "uint32"),
        Y: T.Buffer((ROW,), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        bx = T.launch_thread("blockIdx.x", CTAS)
        tx = T.launch_thread("threadIdx.x", ROW)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((272,), "uint8", scope="shared.dyn", align=1024)
            row = T.decl_buffer((68,), "float32", data=dyn_smem.data, scope="shared.dyn")
            place = T.decl_buffer((68,), "uint32", data=dyn_smem.data, scope="shared.dyn")
            old = T.alloc_buffer((1,), "uint32", scope="local")
            acc = T.alloc_buffer((1,), "float32", scope="local")
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
                T.ptx[f"atom.relaxed.{scope}.global.add.u32"](
                    old[0], T.address_of(C[0]), T.uint32(1)
                )
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

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((ROW,), "float32"),
        W: T.Buffer((ROW,), "float32"),
        S: T.Buffer((1,), "uint32"),
        Y: T.Buffer((ROW,), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        bx = T.launch_thread("blockIdx.x", 2)
        tx = T.launch_thread("threadIdx.x", ROW)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((384,), "uint8", scope="shared.dyn", align=1024)
            row = T.decl_buffer((96,), "float32", data=dyn_smem.data, scope="shared.dyn")
            bars = T.decl_buffer((48,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            seen = T.alloc_buffer((1,), "uint32", scope="local")
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
                T.cuda.mbarrier_wait(T.address_of(bars[40]), 0)
                Y[tx] = row[tx]

    x = drawn(ROW, seed=seed)
    return Kernel(main, {"X": x, "S": np.zeros(1, "uint32")}, {"Y": 2 * x}, grid=2)
