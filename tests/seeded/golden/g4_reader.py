"""G4, the reader: CTA 0 writes a partial row with plain stores, CTA 1 loads it with a bulk copy.

The flag is released and acquired at gpu scope; the reader fences the async proxy for global memory
before its copy.  M53 leaves that fence out.
"""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U32, U64, Local, Shared, hand_threaded

from .common import Kernel

ELEMENTS = 128


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y = 2 X, by way of the workspace W."""
    m = mutation

    @hand_threaded(ELEMENTS, grid=2, smem=640)
    def main(
        X: F32[ELEMENTS], W: F32[ELEMENTS], S: U32[1], Y: F32[ELEMENTS],
        bx, tx, row: Shared[F32], full: Shared[U64], flag: Local[U32],
    ):  # fmt: skip
        ptx.set_up(tx, (full[64], 1))
        if bx == 0:
            W[tx] = X[tx] * T.float32(2)
            T.tvm_storage_sync("shared")
            if tx == 0:
                T.ptx.red.release.gpu.global_.add.u32(T.address_of(S[0]), T.uint32(1))
        else:
            if tx == 0:
                T.cuda.wait_until(
                    flag[0], T.address_of(S[0]), flag[0] == T.uint32(1), ptx_type="u32"
                )
                if m != "M53":
                    T.ptx.fence.proxy.async_.global_()
                ptx.expect_and_load(row[0], W[0], ELEMENTS * 4, full[64])
            ptx.wait(full[64], 0)
            Y[tx] = row[tx]

    x = np.random.default_rng(seed).integers(-8, 9, ELEMENTS).astype("float32")
    twice = 2 * x.astype("float64")
    inputs = {"X": x, "S": np.zeros(1, "uint32")}
    return Kernel(main, inputs, {"Y": twice, "W": twice}, grid=2)
