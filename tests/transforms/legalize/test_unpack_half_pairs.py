"""Upper halves of registers are widened by a mask, two halves are stored at once."""

from __future__ import annotations

import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tests.transforms.scripts import check, parse, run
from tvm_hopper import schedule as hs
from tvm_hopper.testing import memory_bound
from tvm_hopper.transforms.legalize.unpack_half_pairs import UnpackHalfPairs, plan_joins, plan_pairs

PLAIN = """
def func(X: T.Buffer((4,), "{kind}"), Y: T.Buffer((4,), "{kind}"), Z: T.Buffer((4,), "float32")):
    x = T.alloc_local((4,), "{kind}", layout=None)
    for v in T.vectorized(4):
        x[v] = X[v]
    Z[{place}] = T.Cast("float32", x[{place}])
    x[0] = T.Cast("{kind}", T.Cast("float32", x[0]) * T.float32(2))
    x[1] = T.Cast("{kind}", T.Cast("float32", x[{second}]) * T.float32(3))
    for v in T.vectorized(4):
        Y[v] = x[v]
"""
PAIRED = """
    Z[3] = T.reinterpret("float32", T.tvm_hopper_upper_half(x_pairs[1]))
    half_0: T.let[T.float32] = T.Cast("float32", x[0]) * T.float32(2.0)
    half_1: T.let[T.float32] = UPPER * T.float32(3.0)
    x[0] = T.Cast("bfloat16", half_0)
    x[1] = T.Cast("bfloat16", half_1)
""".replace("UPPER", 'T.reinterpret("float32", T.tvm_hopper_upper_half(x_pairs[0]))')


def plain(kind: str = "bfloat16", place: int = 3, second: int = 1):
    return parse(PLAIN.format(kind=kind, place=place, second=second))


def test_upper_halves_and_pairs():
    got = run(plain(), UnpackHalfPairs()).script()
    assert 'x_pairs = x.view("uint32")' in got
    assert PAIRED in got


def test_float16_is_no_half_of_float32():
    plan = plan_pairs(plain("float16"))
    assert not plan.arrays
    assert len(plan.stores) == 1  # but is stored in pairs, too


def test_lower_halves_are_shifted_as_they_were():
    assert not plan_pairs(plain(place=2, second=0)).arrays


LOOP = """
    for g in T.unroll(2):
        odd: T.let[T.int32] = g * 2 + 1
        Z[g] = T.Cast("float32", x[{at}])
"""


@pytest.mark.parametrize("at", ["g * 2 + 1", "odd"])
def test_places_that_a_loop_counts(at):
    text = PLAIN.format(kind="bfloat16", place=2, second=1)
    got = run(parse(text + LOOP.format(at=at)), UnpackHalfPairs()).script()
    assert 'T.reinterpret("float32", T.tvm_hopper_upper_half(x_pairs[' in got[got.index("odd") :]


@pytest.mark.parametrize("at", ["g * 2", "g", "g * 3 + 1"])
def test_places_of_which_no_number_says_the_half(at):
    plain_loop = PLAIN.format(kind="bfloat16", place=2, second=0) + LOOP.format(at=at)
    assert not plan_pairs(parse(plain_loop)).arrays


def test_a_value_of_what_the_first_one_stores_stays_behind_it():
    assert not plan_pairs(plain(second=0)).stores


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["layer_norm", "softmax"])
def test_values_are_the_same(name: str):
    mod = getattr(memory_bound, name)(4, 512)
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch)
    ex = tvm.compile(sch.mod, target="nvidia/nvidia-h200")
    text = ex.mod.imports[0].inspect_source()
    assert "tvm_hopper_upper_half" in text
    assert ("half_0" in text) == (
        name == "layer_norm"
    )  # Y lies in the registers of X, by another name
    assert tvm_hopper.verify(ex, against=mod).verdict == "clean"


GUARDED = """
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
def func(X: T.Buffer((4,), "float16"), Y: T.Buffer((4,), "float16"), n: T.int32):
    x = T.alloc_local((4,), "float16", layout=None)
    if n < 3:
        x[0] = X[0]
        x[1] = X[1]
    if n < 4:
        x[2] = X[2]
        x[3] = X[3]
"""


def guarded(second: str = "n < 4", done: str = "x[3] = X[3]"):
    return parse(GUARDED, ("SECOND", second), ("DONE", done))


def test_neighbours_of_one_condition():
    check(run(guarded(), UnpackHalfPairs()), parse(JOINED))


@pytest.mark.parametrize(
    ("second", "done"),
    [
        ("n < 5", "x[3] = X[3]"),
        ("n < 4", "Y[3] = X[3]"),  # memory
        ("n < 4", "T.evaluate(T.tvm_storage_sync('shared'))"),
    ],
)
def test_what_stays_apart(second: str, done: str):
    (runs,) = plan_joins(guarded(second, done)).values()
    assert [len(x) for x in runs if len(x) > 1] == [2]


def test_a_condition_that_memory_decides_stays():
    text = GUARDED.replace("n < 3", "X[0] < T.float16(3)")
    (runs,) = plan_joins(parse(text, ("SECOND", "n < 4"), ("DONE", "x[3] = X[3]"))).values()
    assert [len(x) for x in runs if len(x) > 1] == [2]


def test_halves_of_a_ragged_program_are_stored_in_pairs():
    mod = memory_bound.silu_mul(3, 1368)
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch, config=hs.PointwiseConfig(threads=128))
    ex = tvm.compile(sch.mod, target="nvidia/nvidia-h200")
    assert "half_0" in ex.mod.imports[0].inspect_source()
    assert tvm_hopper.verify(ex, against=mod).verdict == "clean"
