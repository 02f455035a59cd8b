"""O addresses: addresses computed in registers, of two rows of shared memory and of the output.

Every thread writes a row by an address of 32 bits, reads its neighbour's by a generic address of 64
bits, and stores to the output by a third one, all counted from known places. The mutations take an
address from a body that nobody sees or from memory, or count wrongly.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim.hand_threaded import F32, U32, U64, Local, Shared, hand_threaded

from .common import Kernel

THREADS = 64


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[i] = X[i + 1 modulo 64]; P, offsets in bytes that the host knows, holds zeros."""
    m = mutation

    @hand_threaded(THREADS, smem=256)
    def main(
        X: F32[THREADS], P: U64[2], Y: F32[THREADS],
        tx, row: Shared[F32, THREADS], at: Local[U32], wide: Local[U64, 2], value: Local[F32],
    ):  # fmt: skip
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
