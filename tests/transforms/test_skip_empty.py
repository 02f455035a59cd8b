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


PLAIN = ('{"tvm_hopper.memory_bound": "pointwise"}', "{}")
OURS = ("        with T", '        T.attr("tvm_hopper", "hand_threaded", 1)\n        with T')
OURS_AFTER = ("            with T", f"    {OURS[1]}".replace("\n", "\n    "))


def test_kernels_that_we_synchronise_are_guarded():
    check(run(parse(BEFORE, PLAIN, OURS), SkipEmpty()), parse(AFTER, PLAIN, OURS_AFTER))


def test_kernels_that_tvm_synchronises_stay():
    """TVM's ThreadSync refuses to insert a barrier under a condition."""
    check(run(parse(BEFORE, PLAIN), SkipEmpty()), parse(BEFORE, PLAIN))


def test_a_grid_that_a_condition_around_it_fills_stays():
    guarded = parse(AFTER)
    check(run(guarded, SkipEmpty()), guarded)
    rows = parse(AFTER, ("if (n + 3) // 4 > 0", "if n > 0"))
    check(run(rows, SkipEmpty()), rows)
    other = parse(AFTER, ("if (n + 3) // 4 > 0", "if n > -9"))
    assert str(run(other, SkipEmpty()).body).count("if ") == 2
