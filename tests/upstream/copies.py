"""Programs of TVM's tests of `cp.async`, whose copies wait for themselves.

From apache/tvm, `tests/python/s_tir/transform/test_s_tir_transform_inject_ptx_async_copy.py`
(Apache-2.0): `test_inject_async_copy` and `test_inject_async_copy_shared_dyn`.
"""

# mypy: disable-error-code="valid-type"

from __future__ import annotations

import tvm
from tvm.script import tirx as T


def rows(dtype: str, width: int) -> tvm.tirx.PrimFunc:
    """Copy a row for each thread through shared memory, `width` elements at once."""
    steps = 128 // width

    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((32, 128), dtype), B: T.Buffer((32, 128), dtype)):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        bx = T.env_thread("blockIdx.x")
        tx = T.env_thread("threadIdx.x")
        T.launch_thread(bx, 1)
        T.launch_thread(tx, 32)
        with T.sblock():
            a = T.sblock_alloc_buffer((32, 128), dtype, scope="shared")
            T.reads(A[0:32, 0:128])
            T.writes(B[0:32, 0:128])
            T.attr("default", "async_scope", 1)
            for i in range(steps):
                if width == 1:
                    a[tx, i] = A[tx, i]
                else:
                    for j in T.vectorized(width):
                        a[tx, i * width + j] = A[tx, i * width + j]
            T.evaluate(T.ptx.cp.async_.commit_group())
            T.evaluate(T.ptx.cp.async_.wait_group(0))
            for i in range(128):
                B[tx, i] = a[tx, i]

    return func


def two_rows() -> tvm.tirx.PrimFunc:
    """Add two rows for each thread, by two tiles of dynamic shared memory."""

    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((32, 128), "float16"),
        B: T.Buffer((32, 128), "float16"),
        C: T.Buffer((32, 128), "float16"),
    ):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        bx = T.env_thread("blockIdx.x")
        tx = T.env_thread("threadIdx.x")
        T.launch_thread(bx, 1)
        T.launch_thread(tx, 32)
        with T.sblock():
            a = T.sblock_alloc_buffer((32, 128), "float16", scope="shared.dyn")
            b = T.sblock_alloc_buffer((32, 128), "float16", scope="shared.dyn")
            T.reads(A[0:32, 0:128], B[0:32, 0:128])
            T.writes(C[0:32, 0:128])
            T.attr("default", "async_scope", 1)
            for i in range(16):
                for j in T.vectorized(8):
                    a[tx, i * 8 + j] = A[tx, i * 8 + j]
                    b[tx, i * 8 + j] = B[tx, i * 8 + j]
            T.evaluate(T.ptx.cp.async_.commit_group())
            T.evaluate(T.ptx.cp.async_.wait_group(0))
            for i in range(128):
                C[tx, i] = a[tx, i] + b[tx, i]

    return func


def plain_rows(dtype: str) -> tvm.tirx.PrimFunc:
    """Copy all rows, without threads and tiles."""

    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((32, 128), dtype), B: T.Buffer((32, 128), dtype)):
        T.func_attr({"global_symbol": "main"})
        for i, j in T.grid(32, 128):
            with T.sblock("copy"):
                B[i, j] = A[i, j]

    return func


def plain_sum() -> tvm.tirx.PrimFunc:
    """Add all rows, without threads and tiles."""

    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((32, 128), "float16"),
        B: T.Buffer((32, 128), "float16"),
        C: T.Buffer((32, 128), "float16"),
    ):
        T.func_attr({"global_symbol": "main"})
        for i, j in T.grid(32, 128):
            with T.sblock("sum"):
                C[i, j] = A[i, j] + B[i, j]

    return func
