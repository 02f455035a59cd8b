"""A tensor map in global memory, changed between the loads of two tensors.

One thread replaces the address, releases and acquires the map, and loads a row through it.
"""

from tvm.script import tirx as T

from tests.sim import ptx
from tests.sim.hand_threaded import F32, U32, U64, Local, Map, Shared, hand_threaded

from ...golden.common import LOAD_2D, Kernel
from .pieces import drawn, expect, init

LANES, BYTES = 32, 128
PROXY = "fence.proxy.tensormap::generic"


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[g] = 2 X[g], where X is one tensor a row; M holds the map."""
    m = mutation

    @hand_threaded(LANES, smem=384)
    def main(
        X: F32[2, LANES], M: U32[LANES], Y: F32[2, LANES],
        x_map: Map("X", (LANES, 1), (LANES, 1), strides=(BYTES,)),
        tx, rows: Shared[F32], bars: Shared[U64], word: Local[U32],
    ):  # fmt: skip
        if tx == 0:
            init(bars, 40, 2, 1)
            T.ptx.fence.mbarrier_init.release.cluster()
        word[0] = T.uint32(0)
        for i in T.unroll(LANES):  # an offset is a constant of the CUDA text
            if tx == i:
                T.ptx["ld.u32"](word[0], T.ptx.addr(T.address_of(x_map), i * 4))
        M[tx] = word[0]
        T.tvm_storage_sync("shared")
        for g in T.serial(2):
            if tx == 0:
                T.ptx["tensormap_replace.tile.global_address.global.b1024.b64"](
                    T.address_of(M[0]), T.reinterpret("uint64", T.address_of(X[g, 0]))
                )
                if m != "P73":
                    T.ptx[f"{PROXY}.release.gpu"]()
                if m != "P74":
                    T.ptx[f"{PROXY}.acquire.gpu"](T.address_of(M[0]))
                expect(bars[40 + g], BYTES)
                T.ptx[LOAD_2D](
                    T.address_of(rows[g * LANES]), T.address_of(M[0]), 0, 0,
                    T.address_of(bars[40 + g]),
                )  # fmt: skip
            if m != "P72":
                ptx.wait(bars[40 + g], 0)
                Y[g, tx] = rows[g * LANES + tx] * T.float32(2)
        if m == "P72":
            for g in T.serial(2):
                ptx.wait(bars[40 + g], 0)
                Y[g, tx] = rows[g * LANES + tx] * T.float32(2)

    x = drawn(2, LANES, seed=seed)
    return Kernel(main, {"X": x}, {"Y": 2 * x})
