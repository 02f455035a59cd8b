"""Programs of TVM's tests of software pipelines, with what each computes written anew.

From apache/tvm, `tests/python/s_tir/transform/test_s_tir_transform_inject_software_pipeline.py`
(Apache-2.0): each function names the test whose loops, tiles and annotations it has. Where a
program there reads what nobody wrote, since no test of it looks at values, the index is the written
one, and the function says so.
"""

# mypy: disable-error-code="valid-type"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.script import tirx as T

from tvm_hopper.requests.keys import ASYNC_STAGES, ORDER, STAGE

Notes = dict[str, Any]


def notes(stage: Sequence[int], order: Sequence[int], asynchronous: Sequence[int] = ()) -> Notes:
    """Return TVM's annotations of a pipelined loop."""
    found: Notes = {STAGE: list(stage), ORDER: list(order)}
    return {**found, ASYNC_STAGES: list(asynchronous)} if asynchronous else found


def two_steps(pipeline: Notes, trips: int = 16) -> tvm.tirx.PrimFunc:
    """Compute 2 A + 1 by columns, the double in a shared column (`gen_simple_compute`)."""

    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((16, trips), "float32"), C: T.Buffer((16, trips), "float32")):
        T.func_attr({"global_symbol": "main"})
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            for i in T.serial(trips, annotations=pipeline):
                with T.sblock("compute"):
                    b = T.sblock_alloc_buffer((16, 1), scope="shared")
                    with T.sblock("double"):
                        b[tx, 0] = A[tx, i] * T.float32(2)
                    with T.sblock("add"):
                        C[tx, i] = b[tx, 0] + T.float32(1)

    return func


def two_steps_of_any_length(pipeline: Notes) -> tvm.tirx.PrimFunc:
    """Compute the same over a number of columns that a call brings (`dynamic_compute`)."""

    @T.prim_func(s_tir=True)
    def func(a: T.handle, c: T.handle):
        T.func_attr({"global_symbol": "main"})
        n = T.int32()
        A = T.match_buffer(a, (16, n), "float32")
        C = T.match_buffer(c, (16, n), "float32")
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            for i in T.serial(n, annotations=pipeline):
                with T.sblock("compute"):
                    b = T.sblock_alloc_buffer((16, 1), scope="shared")
                    with T.sblock("double"):
                        b[tx, 0] = A[tx, i] * T.float32(2)
                    with T.sblock("add"):
                        C[tx, i] = b[tx, 0] + T.float32(1)

    return func


def three_steps(pipeline: Notes) -> tvm.tirx.PrimFunc:
    """Compute (2 A + 2) + 1 through two shared columns (`three_stage_compute`)."""

    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((16, 16), "float32"), D: T.Buffer((16, 16), "float32")):
        T.func_attr({"global_symbol": "main"})
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            for i in T.serial(16, annotations=pipeline):
                with T.sblock("compute"):
                    b = T.sblock_alloc_buffer((16, 1), scope="shared")
                    c = T.sblock_alloc_buffer((16, 1), scope="shared")
                    with T.sblock("double"):
                        b[tx, 0] = A[tx, i] * T.float32(2)
                    with T.sblock("add_two"):
                        c[tx, 0] = b[tx, 0] + T.float32(2)
                    with T.sblock("add_one"):
                        D[tx, i] = c[tx, 0] + T.float32(1)

    return func


def diamond(pipeline: Notes) -> tvm.tirx.PrimFunc:
    """Compute 2 A (B + 2), both factors by shared memory to registers (`dag_interleaving`)."""

    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((16, 16), "float32"),
        B: T.Buffer((16, 16), "float32"),
        C: T.Buffer((16, 16), "float32"),
    ):
        T.func_attr({"global_symbol": "main"})
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            for i in T.serial(16, annotations=pipeline):
                with T.sblock("compute"):
                    a_shared = T.sblock_alloc_buffer((16, 1), scope="shared")
                    b_shared = T.sblock_alloc_buffer((16, 1), scope="shared")
                    a_local = T.sblock_alloc_buffer((1, 1), scope="local")
                    b_local = T.sblock_alloc_buffer((1, 1), scope="local")
                    with T.sblock("double"):
                        a_shared[tx, 0] = A[tx, i] * T.float32(2)
                    with T.sblock("read_a"):
                        a_local[0, 0] = a_shared[tx, 0]
                    with T.sblock("add"):
                        b_shared[tx, 0] = B[tx, i] + T.float32(2)
                    with T.sblock("read_b"):
                        b_local[0, 0] = b_shared[tx, 0]
                    with T.sblock("multiply"):
                        C[tx, i] = a_local[0, 0] * b_local[0, 0]

    return func


def sums(pipeline: Notes, pad: bool = False) -> tvm.tirx.PrimFunc:
    """Compute A + B, both copied to shared columns, `pad`ded with zeros on both sides.

    `test_async_producer_interleaving`; with `pad`, `test_cp_async_in_if_then_else` of
    `test_s_tir_transform_inject_ptx_async_copy.py`.
    """
    width = 14 if pad else 16
    attributes = {"global_symbol": "main", **({"tirx.noalias": True} if pad else {})}

    def value(tensor: Any, row: Any, i: Any) -> Any:
        if not pad:
            return tensor[row, i]
        inside = tvm.tirx.all(i >= 1, i < 15)
        return T.if_then_else(inside, tensor[row, i - 1], T.float32(0))

    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((16, width), "float32"),
        B: T.Buffer((16, width), "float32"),
        C: T.Buffer((16, 16), "float32"),
    ):
        T.func_attr(attributes)
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            for i in T.serial(16, annotations=pipeline):
                with T.sblock("compute"):
                    a = T.sblock_alloc_buffer((16, 1), scope="shared")
                    b = T.sblock_alloc_buffer((16, 1), scope="shared")
                    with T.sblock("a"):
                        a[tx, 0] = value(A, tx, i)
                    with T.sblock("b"):
                        b[tx, 0] = value(B, tx, i)
                    with T.sblock("sum"):
                        C[tx, i] = a[tx, 0] + b[tx, 0]

    return func


def without_threads(pipeline: Notes, trips: int | None = 2) -> tvm.tirx.PrimFunc:
    """Compute 2 A + 12 in four steps on shared scalars and no thread axis, `trips` None: any.

    `test_less_loop_than_num_stage`, and `..._dynamic`.
    """

    @T.prim_func(s_tir=True)
    def func(a: T.handle, e: T.handle):
        T.func_attr({"global_symbol": "main"})
        n = T.int32()
        A = T.match_buffer(a, (n,), "float32")
        E = T.match_buffer(e, (n,), "float32")
        for i in T.serial(n, annotations=pipeline):
            with T.sblock("compute"):
                b = T.sblock_alloc_buffer((1,), scope="shared")
                c = T.sblock_alloc_buffer((1,), scope="shared")
                d = T.sblock_alloc_buffer((1,), scope="shared")
                with T.sblock("double"):
                    b[0] = A[i] * T.float32(2)
                with T.sblock("add_three"):
                    c[0] = b[0] + T.float32(3)
                with T.sblock("add_four"):
                    d[0] = c[0] + T.float32(4)
                with T.sblock("add_five"):
                    E[i] = d[0] + T.float32(5)

    if trips is None:
        return func
    return func.specialize({func.params[0]: tvm.tirx.decl_buffer((trips,), "float32", name="A")})
