"""Pipelines inside of a pipeline, from TVM's tests (see `pipelines.py` for which, and how)."""

# mypy: disable-error-code="valid-type"

from __future__ import annotations

import tvm
from tvm.script import tirx as T

from .pipelines import Notes


def in_shared(outer: Notes, inner: Notes) -> tvm.tirx.PrimFunc:
    """Compute 2 A + 1 of rows that are copied to shared memory, by an inner pipeline.

    `nested_pipeline_simple` and `nested_pipeline_prefetch_inner`. The inner tile has one column for
    each thread here; there, an index that the program's other tile does not have.
    """

    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((16, 16, 16), "float32"), C: T.Buffer((16, 16, 16), "float32")):
        T.func_attr({"global_symbol": "main"})
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            for i in T.serial(16, annotations=outer):
                with T.sblock("row"):
                    a = T.sblock_alloc_buffer((16, 1, 16), scope="shared")
                    for j in range(16):
                        with T.sblock("copy"):
                            a[tx, 0, j] = A[tx, i, j]
                    for j in T.serial(16, annotations=inner):
                        with T.sblock("element"):
                            b = T.sblock_alloc_buffer((16, 1, 1), scope="shared")
                            with T.sblock("double"):
                                b[tx, 0, 0] = a[tx, 0, j] * T.float32(2)
                            with T.sblock("add"):
                                C[tx, i, j] = b[tx, 0, 0] + T.float32(1)

    return func


def by_registers(outer: Notes, inner: Notes, two_buffers: bool = False) -> tvm.tirx.PrimFunc:
    """Compute the same, rows by shared memory to registers, where asked for in `two_buffers`.

    `nested_pipeline_interleaving` and `nested_pipeline_double_buffer`. What is read of the shared
    row here is what was written; there, a row that nobody wrote.
    """
    block = {"double_buffer_scope": 0} if two_buffers else {}

    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((16, 16, 16), "float32"), C: T.Buffer((16, 16, 16), "float32")):
        T.func_attr({"global_symbol": "main"})
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            for i in T.serial(16, annotations=outer):
                with T.sblock("row"):
                    a = T.sblock_alloc_buffer((16, 1, 16), scope="shared")
                    r = T.sblock_alloc_buffer((1, 1, 16), scope="local")
                    for j in range(16):
                        with T.sblock("copy"):
                            a[tx, 0, j] = A[tx, i, j]
                    for j in range(16):
                        with T.sblock("read"):
                            T.sblock_attr(block)
                            r[0, 0, j] = a[tx, 0, j]
                    for j in T.serial(16, annotations=inner):
                        with T.sblock("element"):
                            b = T.sblock_alloc_buffer((16, 1, 1), scope="shared")
                            with T.sblock("double"):
                                b[tx, 0, 0] = r[0, 0, j] * T.float32(2)
                            with T.sblock("add"):
                                C[tx, i, j] = b[tx, 0, 0] + T.float32(1)

    return func
