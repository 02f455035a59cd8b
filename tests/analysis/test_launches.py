"""Conditions of the host around a kernel: found, used as knowledge, and written for people."""

from __future__ import annotations

import pytest
from tvm import sym, tirx
from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper.analysis.launches import HostCondition, as_text, conditions_around, known_at, most


@T.prim_func(private=True, s_tir=True)
def four(X: T.handle, n: T.int32):
    m = T.int32()
    x = T.match_buffer(X, (m,), "float32")
    if m <= 16:
        for b0 in T.thread_binding(4, thread="blockIdx.x"):
            if b0 < 2:
                x[b0] = T.float32(0)
    else:
        if m <= 64:
            for b1 in T.thread_binding(4, thread="blockIdx.x"):
                x[b1] = T.float32(1)
        else:
            if n == 3:
                for b2 in T.thread_binding(4, thread="blockIdx.x"):
                    x[b2] = T.float32(2)
    for b3 in T.thread_binding(4, thread="blockIdx.x"):
        x[b3] = T.float32(3)


TEXTS = ("m <= 16", "17 <= m <= 64", "m >= 65 and n == 3", "")


def around(number):
    return conditions_around(four.body, ir.kernels(four)[number])


@pytest.mark.parametrize(("number", "text"), [*enumerate(TEXTS)])
def test_conditions_of_each_kernel(number, text):
    assert as_text(around(number)) == text


@pytest.mark.parametrize(("number", "bound"), [*enumerate((16, 64, None, None))])
def test_what_is_known_of_an_extent(number, bound):
    (m,) = four.params[0].ty.shape
    with known_at(around(number)) as analyzer:
        assert most(m, analyzer) == bound
        assert most(m * 2, analyzer) == (bound and 2 * bound)
        assert most(tirx.IntImm("int64", 1 << 40), analyzer) == 1 << 40
    assert most(m, sym.Analyzer()) is None


M, N = tirx.Var("m", "int64"), tirx.Var("n", "int64")


@pytest.mark.parametrize(
    ("condition", "holds", "text"),
    [
        (M < 5, True, "m <= 4"),
        (M < 5, False, "m >= 5"),
        (M >= 5, False, "m <= 4"),
        (M > 5, False, "m <= 5"),
        (tirx.LT(tirx.IntImm("int64", 0), M), True, "m >= 1"),
        (tirx.LT(tirx.IntImm("int64", 0), M * 8), True, "m * 8 >= 1"),
        (M < N, False, "m >= n"),
        (tirx.EQ(M, tirx.IntImm("int64", 4)), True, "m == 4"),
        (tirx.EQ(M, tirx.IntImm("int64", 4)), False, "m <= 3 or m >= 5"),
    ],
)
def test_one_condition(condition, holds, text):
    assert as_text([HostCondition(condition, holds)]) == text


def test_the_tighter_of_two_bounds_is_said():
    every = [HostCondition(M <= 9, True), HostCondition(M <= 4, True), HostCondition(M <= 1, False)]
    assert as_text(every) == "2 <= m <= 4"


OR, AND, NOT = tirx.Or, tirx.And, tirx.Not
RANGES = {
    "m <= 4": [(M <= 4, True)],
    "m >= 5": [(M <= 4, False)],
    "5 <= m <= 64": [(M <= 4, False), (M <= 64, True)],
    "m == 5": [(M < 6, True), (tirx.IntImm("int64", 4) < M, True)],
    "m <= 6 or m >= 8": [(M.equal(7), False)],
    "m <= 4 or 9 <= m <= 16": [(OR(M <= 4, AND(M > 8, M <= 16)), True)],
    "5 <= m <= 8 or m >= 17": [(OR(M <= 4, AND(M > 8, M <= 16)), False)],
    "1 <= m <= 4 or m == 6": [(M >= 1, True), (OR(M <= 4, M.equal(6)), True)],
    "2 <= m <= 3": [(NOT(OR(M < 2, M > 3)), True)],
    "no m": [(M <= 4, True), (M > 4, True)],
    "(m <= 4 or m >= 9) and n <= 2": [(OR(M <= 4, M > 8), True), (N <= 2, True)],
    "m < n": [(M < N, True)],
    "m <= 3 and m < n": [(M <= 3, True), (M < N, True)],
}


@pytest.mark.parametrize("text", RANGES)
def test_ranges_in_words(text):
    assert as_text([HostCondition(*x) for x in RANGES[text]]) == text


def test_what_is_no_range_stays_as_it_is():
    mixed = OR(M <= 4, N <= 4)
    assert as_text([HostCondition(mixed, True)]) == "m <= 4 or n <= 4"
