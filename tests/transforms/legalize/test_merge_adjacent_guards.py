"""MergeAdjacentGuards: neighbours that fill registers by one condition stand behind it together."""

from __future__ import annotations

import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tests.transforms.scripts import check, parse, run
from tvm_hopper import schedule as hs
from tvm_hopper.testing import memory_bound
from tvm_hopper.transforms.legalize.merge_adjacent_guards import MergeAdjacentGuards, plan_joins

PLAIN = """
@T.prim_func(private=True, s_tir=True)
def func(X: T.Buffer((4,), "float16"), Y: T.Buffer((4,), "float16"), n: T.int32):
    x = T.alloc_local((4,), "float16", layout=None)
    if n < 3:
        x[0] = X[0]
    if n < 3:
        x[1] = X[1]
    if SECOND:
        x[2] = X[2]
    if n < 4:
        DONE
"""
JOINED = """
@T.prim_func(private=True, s_tir=True)
def func(X: T.Buffer((4,), "float16"), Y: T.Buffer((4,), "float16"), n: T.int32):
    x = T.alloc_local((4,), "float16", layout=None)
    if n < 3:
        x[0] = X[0]
        x[1] = X[1]
    if n < 4:
        x[2] = X[2]
        x[3] = X[3]
"""


def plain(second: str = "n < 4", done: str = "x[3] = X[3]"):
    return parse(PLAIN, ("SECOND", second), ("DONE", done))


def test_neighbours_of_one_condition():
    check(run(plain(), MergeAdjacentGuards()), parse(JOINED))


def test_again_finds_nothing():
    after = run(plain(), MergeAdjacentGuards())
    assert not plan_joins(after)
    assert run(after, MergeAdjacentGuards()).same_as(after)


@pytest.mark.parametrize(
    ("second", "done"),
    [
        ("n < 5", "x[3] = X[3]"),
        ("n < 4", "Y[3] = X[3]"),  # memory
        ("n < 4", "T.evaluate(T.tvm_storage_sync('shared'))"),
    ],
)
def test_what_stays_apart(second: str, done: str):
    (runs,) = plan_joins(plain(second, done)).values()
    assert [len(x) for x in runs if len(x) > 1] == [2]


def test_a_condition_that_memory_decides_stays():
    text = PLAIN.replace("n < 3", "X[0] < T.float16(3)")
    (runs,) = plan_joins(parse(text, ("SECOND", "n < 4"), ("DONE", "x[3] = X[3]"))).values()
    assert [len(x) for x in runs if len(x) > 1] == [2]


def test_halves_of_a_ragged_program_are_stored_in_pairs():
    mod = memory_bound.silu_mul(3, 1368)
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch, config=hs.PointwiseConfig(threads=128))
    ex = tvm.compile(sch.mod, target="nvidia/nvidia-h200")
    assert "half_0" in ex.mod.imports[0].inspect_source()
    assert tvm_hopper.verify(ex, against=mod).verdict == "clean"
