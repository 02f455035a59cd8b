"""A tensor map in global memory, changed between the loads of two tensors.

One thread replaces the address, releases and acquires the map, and loads a row through it.
"""

from __future__ import annotations

from tvm.script import tirx as T

from ...golden.common import ENCODE, LOAD_2D, Kernel
from .pieces import drawn, expect, init

LANES, BYTES = 32, 128
PROXY = "fence.proxy.tensormap::generic"


def build(mutation: str | None = None, *, seed: int = 0) -> Kernel:
    """Build it: Y[g] = 2 X[g], where X is one tensor a row; M holds the map."""
    m = mutation

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((2, LANES), "float32"),
        M: T.Buffer((LANES,), "uint32"),
        Y: T.Buffer((2, LANES), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        x_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(
            ENCODE, x_map, "float32", 2, X.data, LANES, 1, BYTES, LANES, 1, 1, 1, 0, 0, 2, 0
        )
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", LANES)
        with T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((384,), "uint8", scope="shared.dyn", align=1024)
            rows = T.decl_buffer((96,), "float32", data=dyn_smem.data, scope="shared.dyn")
            bars = T.decl_buffer((48,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            word = T.alloc_buffer((1,), "uint32", scope="local")
            if tx == 0:
                init(bars, 40, 2, 1)
                T.ptx.fence.mbarrier_init.release.cluster()
            word[0] = T.uint32(0)
            T.ptx["ld.u32"](word[0], T.ptx.addr(T.address_of(x_map), tx * 4))
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
                    T.cuda.mbarrier_wait(T.address_of(bars[40 + g]), 0)
                    Y[g, tx] = rows[g * LANES + tx] * T.float32(2)
            if m == "P72":
                for g in T.serial(2):
                    T.cuda.mbarrier_wait(T.address_of(bars[40 + g]), 0)
                    Y[g, tx] = rows[g * LANES + tx] * T.float32(2)

    x = drawn(2, LANES, seed=seed)
    return Kernel(main, {"X": x}, {"Y": 2 * x})
