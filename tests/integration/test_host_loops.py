"""A function for a GPU that touches tensors outside of kernels does not build."""

from __future__ import annotations

import pytest
import tvm
from tvm import s_tir, te
from tvm.s_tir import dlight as dl
from tvm.script import ir as I, tirx as T
from tvm.target import Target

from tvm_hopper import LoweringError, dlight
from tvm_hopper.testing import memory_bound, workloads

from . import _programs

H200 = "nvidia/nvidia-h200"


@T.prim_func(s_tir=True)
def histogram(X: T.Buffer((4096,), "int32"), H: T.Buffer((64,), "int32")):
    T.func_attr({"tirx.noalias": True})
    for b in range(64):
        with T.sblock("init"):
            vb = T.axis.spatial(64, b)
            H[vb] = 0
    for i in range(4096):
        with T.sblock("hist"):
            vi = T.axis.reduce(4096, i)
            H[X[vi]] = H[X[vi]] + 1


def _no_elements():
    a = te.placeholder((0, 64), "float32", name="A")
    return te.create_prim_func([a, te.compute((0, 64), lambda i, j: a[i, j] + 1, name="B")])


def _half_scheduled():
    """Return two blocks, of which one has a kernel."""
    a = te.placeholder((64,), "float32", name="A")
    b = te.compute((64,), lambda i: a[i] + 1, name="B")
    sch = s_tir.Schedule(te.create_prim_func([a, te.compute((64,), lambda i: b[i] * 2, name="C")]))
    sch.bind(sch.get_loops(sch.get_sblock("C"))[0], "blockIdx.x")
    return sch.mod["main"]


@I.ir_module(s_tir=True)
class Helper:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
        for tx in T.thread_binding(128, "threadIdx.x"):
            B[tx] = Helper.plus(A[tx])

    @T.prim_func(private=True, s_tir=True)
    def plus(a: T.float32) -> T.float32:
        return a + T.float32(1)


@T.prim_func(s_tir=True)
def calls(A: T.Buffer((128,), "float32")):
    T.func_attr({"global_symbol": "calls"})
    T.evaluate(T.call_packed("outside", A.data))


REFUSED = {
    "a product": (
        lambda: workloads.matmul(128, 128, 64),
        r"function main, block C: found a store into C outside of every kernel; need kernels: .*"
        r"schedule it: hs\.matmul\(sch, \.\.\), or .*rules\(\) .*\(Matmul takes it\)",
    ),
    "elements": (lambda: memory_bound.silu_mul(16, 256), r"hs\.pointwise\(sch, \.\.\)"),
    "what no rule takes": (
        lambda: histogram,
        "block init: .* no rule takes it .*RowReduction: .* no initial value.*Fallback: ",
    ),
    "a part of a kernel": (
        _half_scheduled, "block B: found a store into B outside .*; schedule the block as a kernel"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(LoweringError, match=message):
        tvm.compile(make(), target=H200)


def test_after_rules_that_all_refuse():
    mod = tvm.IRModule({"hist": histogram.with_attr("global_symbol", "hist")})
    with Target(H200):
        mod = dl.ApplyDefaultSchedule(*dlight.rules())(mod)
    with pytest.raises(LoweringError, match=r"function hist, block init.* no rule takes it"):
        tvm.compile(mod, target=H200)


@pytest.mark.parametrize(
    "func",
    [
        histogram.with_attr("tirx.is_host_func", True),
        histogram.with_attr("target", Target("llvm")),
        _no_elements(),
        Helper,
        calls,
        _programs.add_one().mod,
    ],
    ids=["for the host", "host target", "no elements", "called by a kernel", "calls", "a kernel"],
)
def test_taken(func):
    tvm.compile(func, target=H200)


def test_functions_for_the_host_alone():
    tvm.compile(histogram, target="llvm")
