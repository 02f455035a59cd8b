"""SkipEmpty: a grid without thread blocks is not launched."""

from __future__ import annotations

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.skip_empty import SkipEmpty

BEFORE = """
@T.prim_func(private=True, s_tir=True)
def func(n: T.int32, X: T.Buffer((1024,), "float32")):
    for bx in T.thread_binding(
        (n + 3) // 4, thread="blockIdx.x", annotations={"tvm_hopper.memory_bound": "pointwise"}
    ):
        with T.sblock("init"):
            X[bx] = T.float32(0)
"""
AFTER = """
@T.prim_func(private=True, s_tir=True)
def func(n: T.int32, X: T.Buffer((1024,), "float32")):
    if (n + 3) // 4 > 0:
        for bx in T.thread_binding(
            (n + 3) // 4,
            thread="blockIdx.x",
            annotations={"tvm_hopper.memory_bound": "pointwise"},
        ):
            with T.sblock("init"):
                X[bx] = T.float32(0)
"""


def test_a_grid_that_may_be_empty_is_guarded():
    check(run(parse(BEFORE), SkipEmpty()), parse(AFTER))


def test_a_grid_of_known_size_stays():
    known = parse(BEFORE, ("(n + 3) // 4", "256"))
    check(run(known, SkipEmpty()), known)


def test_other_kernels_stay():
    other = parse(BEFORE, ('{"tvm_hopper.memory_bound": "pointwise"}', "{}"))
    check(run(other, SkipEmpty()), other)
