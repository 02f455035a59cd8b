"""Tiny device functions for single rules of the static check."""

from __future__ import annotations

from collections.abc import Callable

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from tests.seeded.lowering import lower


def kernel(emit: Callable, threads: int = 256, bounds: bool = True) -> PrimFunc:
    """Lower a kernel whose body `emit(tx, sf, bars, reg)` gives; it must be a `T.inline`.

    `sf` is a float32 and `bars` a uint64 view of shared memory; `reg` are 64 float32 registers.
    """
    attr = "tirx.launch_bounds_min_blocks_per_sm" if bounds else "hand_threaded"

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((1024,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", threads)
        with T.attr(T.int32(0), attr, 1), T.attr(T.int32(0), "hand_threaded", 1):
            dyn_smem = T.alloc_buffer((4096,), "uint8", scope="shared.dyn", align=1024)
            sf = T.decl_buffer((1024,), "float32", data=dyn_smem.data, scope="shared.dyn")
            bars = T.decl_buffer((512,), "uint64", data=dyn_smem.data, scope="shared.dyn")
            reg = T.alloc_buffer((64,), "float32", scope="local")
            emit(X, tx, sf, bars, reg)

    return lower(main).device
