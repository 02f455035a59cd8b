"""Schedules for Ampere, with asynchronous stages and not a word of this package, for tests.

The forms are those of pipelines that TVM's own tests of `software_pipeline_async_stages` have.
"""

# mypy: disable-error-code="valid-type"

from __future__ import annotations

import tvm
from tvm.script import tirx as T

from .ampere_forms import Form, scaled

A100 = {
    "kind": "cuda",
    "arch": "sm_80",
    "host": "llvm",
    "max_num_threads": 1024,
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
}
INTERLEAVED = {
    "software_pipeline_stage": [0, 0, 3],
    "software_pipeline_order": [0, 2, 1],
    "software_pipeline_async_stages": [0],
}


@T.prim_func(s_tir=True)
def columns(
    A: T.Buffer((16, 16), "float32"),
    B: T.Buffer((16, 16), "float32"),
    C: T.Buffer((16, 16), "float32"),
):
    """Compute a sum: two producers in one stage, an element for each thread."""
    T.func_attr({"global_symbol": "main"})
    for tx in T.thread_binding(16, thread="threadIdx.x"):
        for i in T.serial(16, annotations=INTERLEAVED):
            with T.sblock("compute"):
                a = T.sblock_alloc_buffer((16, 1), scope="shared")
                b = T.sblock_alloc_buffer((16, 1), scope="shared")
                with T.sblock("a"):
                    a[tx, 0] = A[tx, i]
                with T.sblock("b"):
                    b[tx, 0] = B[tx, i]
                with T.sblock("sum"):
                    C[tx, i] = a[tx, 0] + b[tx, 0]


@T.prim_func(s_tir=True)
def padded(A: T.Buffer((16, 14), "float32"), C: T.Buffer((16, 16), "float32")):
    """Copy under a condition on both sides, which fills with zeros."""
    T.func_attr({"global_symbol": "main"})
    for tx in T.thread_binding(16, thread="threadIdx.x"):
        for i in T.serial(
            16,
            annotations={
                "software_pipeline_stage": [0, 3],
                "software_pipeline_order": [0, 1],
                "software_pipeline_async_stages": [0],
            },
        ):
            with T.sblock("compute"):
                a = T.sblock_alloc_buffer((16, 1), scope="shared")
                with T.sblock("a"):
                    a[tx, 0] = T.if_then_else(i >= 1 and i < 15, A[tx, i - 1], T.float32(0))
                with T.sblock("store"):
                    C[tx, i] = a[tx, 0]


def vectors(
    rows: int = 64, columns: int = 128, stages: int = 4, steps: int = 8, threads: int = 32
) -> tvm.IRModule:
    """Schedule C = 2 A for Ampere: a tile by vectors of 16 bytes a thread, in an async stage.

    A thread block computes `steps` tiles of `threads // 4` x 64, one below the other.
    """
    form = Form((threads // 4, 64), steps, threads, chunk=8, vector=4, stages=stages)
    return scaled(rows, columns, form, "float16")
