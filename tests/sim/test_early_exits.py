"""Kernels that some threads leave early: what follows them, and what does not."""

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.sim.protocol.check import explore_skeleton
from tvm_hopper.static_check import check_sync

from .kernels import lower

X = np.arange(128, dtype="float32")


def kernel(how):
    """Let two warps meet at a barrier of 64, in or behind a statement that may be left early."""

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((128,), "float32"), Y: T.Buffer((128,), "float32")):
        T.func_attr({"global_symbol": "main"})
        T.launch_thread("blockIdx.x", 1)
        tx = T.launch_thread("threadIdx.x", 128)
        with T.attr(T.int32(0), "hand_threaded", 1):
            if how == "return":
                if tx >= 64:
                    T.evaluate(T.thread_return())
                T.ptx.bar.sync(T.uint32(1), T.uint32(64))
            if how == "break":
                for i in T.serial(4):
                    T.ptx.bar.sync(T.uint32(1), T.uint32(128))
                    if i == 2:
                        T.evaluate(T.break_loop())
            if how == "break inside":
                for _ in T.serial(4):
                    T.ptx.bar.sync(T.uint32(1), T.uint32(128))
                    for k in T.serial(4):
                        if k == 2:
                            T.evaluate(T.break_loop())
            if how == "return without a meeting":
                if tx >= 64:
                    T.evaluate(T.thread_return())
            Y[tx] = X[tx]

    return lower(main)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("return", "skeleton: a return in front of the function's end"),
        ("break", "skeleton: loop i around synchronisation is left early"),
    ],
)
def test_what_is_left_early_is_not_explored(how, reason):
    program = kernel(how)
    (func,) = program.kernels.values()
    (found,) = explore_skeleton(func, program.host).findings
    assert (found.rule, found.message) == ("INCOMPLETE", reason)
    assert [one.rule for one in check_sync(func, program.host)] == ["INCOMPLETE"]


@pytest.mark.parametrize("how", ["break inside", "return without a meeting"])
def test_what_no_meeting_depends_on_is_no_matter(how):
    program = kernel(how)
    (func,) = program.kernels.values()
    assert explore_skeleton(func, program.host).findings == ()
