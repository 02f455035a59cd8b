"""FLOPs, bytes and kinds of functions, counted from their TIR."""

from __future__ import annotations

import pytest
from tvm.script import tirx as T

from tests.relax import models
from tests.relax.kinds import export
from tvm_hopper.relax.work import FunctionWork, count_work


@T.prim_func(s_tir=True, private=True)
def gather(
    W: T.Buffer((1000, 64), "float16"), P: T.Buffer((8,), "int64"), Y: T.Buffer((8, 64), "float16")
):
    for i, j in T.grid(8, 64):
        with T.sblock("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = W[P[vi], vj]


@T.prim_func(s_tir=True, private=True)
def last_row(X: T.Buffer((100, 64), "float32"), Y: T.Buffer((1, 64), "float32")):
    for i, j in T.grid(1, 64):
        with T.sblock("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.exp(X[vi + 99, vj]) * 2.0


@T.prim_func(s_tir=True, private=True)
def joined(
    X: T.Buffer((8,), "float16"), Z: T.Buffer((8,), "float16"), Y: T.Buffer((16,), "float16")
):
    for i in range(16):
        with T.sblock("Y"):
            vi = T.axis.spatial(16, i)
            Y[vi] = T.if_then_else(vi < 8, X[vi], Z[vi - 8])


@T.prim_func(s_tir=True, private=True)
def columns(X: T.Buffer((100, 64), "float32"), Y: T.Buffer((64,), "float32")):
    for j, i in T.grid(64, 100):
        with T.sblock("Y"):
            vj, vi = T.axis.remap("SR", [j, i])
            with T.init():
                Y[vj] = T.float32(0)
            Y[vj] = Y[vj] + X[vi, vj]


@T.prim_func(s_tir=True, private=True)
def by_data(X: T.Buffer((64,), "int32"), Y: T.Buffer((64,), "int32")):
    for i in T.thread_binding(64, "threadIdx.x"):
        Y[i] = 0
        while Y[i] < X[i]:
            Y[i] = Y[i] + 1


@T.prim_func(s_tir=True, private=True)
def threads(X: T.Buffer((64,), "float32"), Y: T.Buffer((64,), "float32")):
    for b in T.thread_binding(2, "blockIdx.x"):
        for t in T.thread_binding(32, "threadIdx.x"):
            Y[b * 32 + t] = X[b * 32 + t] + 1.0


@T.prim_func(s_tir=True, private=True)
def reshape(X: T.Buffer((8, 8), "float16"), Y: T.Buffer((64,), "float16")):
    for i in range(64):
        with T.sblock("Y"):
            vi = T.axis.spatial(64, i)
            Y[vi] = X[vi // 8, vi % 8]


@pytest.mark.parametrize(
    ("func", "wanted"),
    [
        (
            gather,
            FunctionWork("pointwise", "0", str(8 * 64 * 2 * 2 + 8 * 8)),
        ),  # 8 rows of the table
        (last_row, FunctionWork("pointwise", "128", str(2 * 64 * 4))),
        (joined, FunctionWork("pointwise", "0", str(2 * 16 * 2))),
        (columns, FunctionWork("column reduction", "6400", str(6400 * 4 + 64 * 4))),
        (by_data, FunctionWork("pointwise", "", "512")),
        (threads, FunctionWork("pointwise", "64", "512")),
        (reshape, FunctionWork("reshape", "0", "256")),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_work(func, wanted):
    assert count_work(func) == wanted


def test_work_of_a_model():
    found = {name: count_work(x) for name, x in models.plain_functions(export("encoder")).items()}
    product = found["fused_NT_matmul1_add1_add2_rows"]  # 128 x 128, bias, residual
    assert product == FunctionWork("product", "rows * 33024", "rows * 768 + 33024")
    assert found["layer_norm_rows"].kind == "row reduction"
    assert found["attention"].flops.startswith("batch * length * length *")
