"""TVM's own cp.async, which its code generator prints of attributes and a call of its own."""

import numpy as np
import pytest
import tvm
from tvm.ir.transform import PassContext
from tvm.script import tirx as T

from tests.transforms.scripts import check
from tests.upstream import pipelines
from tvm_hopper.sim.implied import spell_out
from tvm_hopper.simulation import simulate, verify

STOCK = {"tirx.use_async_copy": True}
SM_80 = {"kind": "cuda", "arch": "sm_80", "host": "llvm"}
RUNS = (("eager", 0), ("on_wait", 0), ("random", 1))


def raw_copy(tile, tile_offset, tensor, tensor_offset, num_bytes, condition):
    """Build TVM's call with a predicate, which scripts cannot write."""
    op = tvm.ir.Op.get("tirx.s_tir.cp_async_raw")
    size = tvm.tirx.IntImm("int32", num_bytes)
    arguments = [tile.data, tile_offset, tensor.data, tensor_offset, size, condition]
    return tvm.ir.Call(op, arguments, ret_ty="float32")


def implied(wait=0):
    @T.prim_func(private=True, s_tir=True)
    def func(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        tx = T.launch_thread("threadIdx.x", 16)
        a = T.alloc_buffer((64,), "float32", scope="shared")
        with T.attr(0, "async_commit_queue_scope", 0):
            T.s_tir.cp_async_raw("float32", a.data, tx * 4, A.data, tx * 4 + 1, 16)
        with T.attr(0, "async_commit_queue_scope", 0):
            T.evaluate(raw_copy(a, tx, A, tx, 4, tx < 12))
        with T.attr(0, "async_wait_queue_scope", 0), T.attr(0, "async_wait_inflight_count", wait):
            C[tx] = a[tx]

    return func


def spelt(wait=0):
    @T.prim_func(private=True, s_tir=True)
    def func(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        tx = T.launch_thread("threadIdx.x", 16)
        a = T.alloc_buffer((64,), "float32", scope="shared")
        T.ptx["cp.async.cg.shared.global"](T.address_of(a[tx * 4]), T.address_of(A[tx * 4 + 1]), 16)
        T.ptx.cp.async_.commit_group()
        if tx < 12:
            T.ptx["cp.async.ca.shared.global"](T.address_of(a[tx]), T.address_of(A[tx]), 4)
        else:
            a[tx] = T.float32(0)
        T.ptx.cp.async_.commit_group()
        T.ptx.cp.async_.wait_group(wait)
        C[tx] = a[tx]

    return func


@pytest.mark.parametrize("wait", [0, 1])
def test_what_is_implied_is_spelt_out(wait):
    check(spell_out(implied(wait)), spelt(wait))


def test_what_is_spelt_stays():
    func = spelt()
    assert spell_out(func) is func


def test_a_wait_without_a_constant_is_none():
    @T.prim_func(private=True, s_tir=True)
    def func(C: T.Buffer((64,), "float32"), n: T.int32):
        with T.attr(0, "async_wait_queue_scope", 0), T.attr(0, "async_wait_inflight_count", n):
            C[0] = T.float32(0)

    assert spell_out(func) is func


def columns(*, stages: int, order: list[int]):
    """Add columns that two copies bring; TVM's pass commits a group for each run of copies."""
    return pipelines.sums(pipelines.notes([0, 0, stages], order, [0]))


def test_tvms_pipelines_of_copies_are_judged():
    func = columns(stages=3, order=[0, 1, 2])
    with PassContext(config=STOCK):
        report = verify(func, target=SM_80, against=func, runs=RUNS)
    assert report.verdict == "clean", str(report)
    assert "values compared" in str(report)


def test_tvms_waits_of_interleaved_copies_come_too_late():
    """In front of the loop a group holds both copies, in it there are two, counted alike.

    TVM waits for all but five groups: in the first iterations those that are read are among them.
    """
    func = columns(stages=3, order=[0, 2, 1])
    with PassContext(config=STOCK):
        report = verify(func, target=SM_80, against=func, runs=RUNS)
        inputs = {n: np.ones((16, 16), "float32") for n in "AB"}
        late = simulate(func, inputs, policy="on_wait", target=SM_80).outputs["C"]
    assert report.verdict == "error"
    assert "RACE_READ_INFLIGHT" in str(report)
    assert np.isnan(late[:, :2]).any()
    assert (late[:, 3:] == 2).all()
