"""O addresses: addresses computed in registers, of two rows of shared memory and of the output.

Every thread writes a row by an address of 32 bits, reads its neighbour's by a generic address of 64
bits, and stores to the output by a third one, all counted from known places. The mutations take an
address from a body that nobody sees or from memory, or count wrongly.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from .common import Kernel

THREADS = 64


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[i] = X[i + 1 modulo 64]; P, offsets in bytes that the host knows, holds zeros."""
    m = mutation

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((THREADS,), "float32"),
        P: T.Buffer((2,), "uint64"),
        Y: T.Buffer((THREADS,), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", THREADS)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((256,), "uint8", scope="shared.dyn", align=1024)
            row = T.decl_buffer((THREADS,), "float32", data=dyn_smem.data, scope="shared.dyn")
            at = T.alloc_buffer((1,), "uint32", scope="local")
            wide = T.alloc_buffer((2,), "uint64", scope="local")
            value = T.alloc_buffer((1,), "float32", scope="local")
            at[0] = T.cuda.cvta_generic_to_shared(T.address_of(row[0])) + T.Cast(
                "uint32", (tx + 1 if m == "O10" else tx) * 4
            )
            T.ptx["st.shared.f32"](at[0], X[tx])
            T.tvm_storage_sync("shared")
            if m == "O08":
                T.ptx["ld.f32"](value[0], T.call_extern("uint64", "row_of", tx))
            elif m == "O09":
                T.ptx["ld.global.f32"](value[0], P[0] + T.Cast("uint64", (tx + 1) % THREADS * 4))
            else:
                wide[0] = T.reinterpret("uint64", T.address_of(row[0])) + T.Cast(
                    "uint64", (tx + 1) % THREADS * 4
                )
                T.ptx["ld.f32"](value[0], wide[0])
            wide[1] = T.reinterpret("uint64", T.address_of(Y[tx])) + P[1]
            T.ptx["st.global.f32"](wide[1], value[0])

    x = np.random.default_rng(seed).integers(-8, 9, THREADS).astype("float32")
    inputs = {"X": x, "P": np.zeros(2, "uint64")}
    return Kernel(main, inputs, {"Y": np.roll(x, -1).astype("float64")})
