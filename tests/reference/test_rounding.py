"""Rounding in float64 is numpy's (ml_dtypes'), bit for bit, but that 8-bit floats saturate."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.reference.evaluate import Reference
from tvm_hopper.reference.lift import Lifter, Number
from tvm_hopper.reference.plain import PlainProgramError, pick_function, read
from tvm_hopper.reference.rounding import FORMATS, const


def rounded(dtype, values):
    n = len(values)

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((n,), "float64"), Y: T.Buffer((n,), dtype)):
        for i in range(n):
            Y[i] = T.Cast(dtype, X[i])

    found = Reference(main).evaluate([values, np.zeros(n, DTYPES[dtype].numpy)], {1: ((0, n - 1),)})
    return found[1]


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32"]
)
def test_rounding_is_numpy_s(dtype):
    fmt = FORMATS[dtype]
    rng = np.random.default_rng(1)
    exponents = rng.uniform(np.log2(fmt.quantum) - 2, np.log2(fmt.largest) - 0.01, 4000)
    values = 2**exponents * rng.choice([-1, 1], 4000)
    numbers = rng.standard_normal(500).astype(DTYPES[dtype].numpy).astype(np.float64)
    ties = numbers * (1 + fmt.roundoff)
    values = np.concatenate([values, numbers, ties, [0.0, -0.0, np.inf, -np.inf, np.nan]])
    found = rounded(dtype, values).value
    if dtype == "float32" or not fmt.saturates:
        want = values.astype(np.float32 if dtype == "bfloat16" else np.float64)
        with np.errstate(over="ignore"):
            want = want.astype(DTYPES[dtype].numpy).astype(np.float64)
    else:
        clipped = np.clip(values, -fmt.largest, fmt.largest)
        want = clipped.astype(np.float32).astype(DTYPES[dtype].numpy).astype(np.float64)
    double = values.astype(np.float32).astype(np.float64) != values  # numpy rounds twice
    same = (found == want) | (np.isnan(found) & np.isnan(want))
    assert same[~double].all()
    assert same.mean() > 0.999


def test_what_is_too_large_is_infinite_or_saturates():
    assert rounded("float16", np.array([65519.0, 65520.0, -1e9])).value.tolist() == [
        65504,
        np.inf,
        -np.inf,
    ]
    assert rounded("float8_e4m3fn", np.array([500.0, -1e9])).value.tolist() == [448, -448]
    assert rounded("float8_e5m2", np.array([1e9])).value.tolist() == [57344]


# -- errors of expressions ------------------------------------------------------------------------


def error_of(build, *values, dtype="float32"):
    """Return value and error of an expression of some elements."""
    n = len(values)

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((n,), dtype), Y: T.Buffer((1,), dtype)):
        for i in range(1):
            Y[i] = build(X)

    arrays = [np.array(values, DTYPES[dtype].numpy), np.zeros(1, DTYPES[dtype].numpy)]
    found = Reference(main).evaluate(arrays, {1: ((0, 0),)})[1]
    return found.value[0], found.error[0]


U = 2.0**-24


@pytest.mark.parametrize(
    ("build", "values", "error"),
    [
        (lambda x: x[0] + x[1], (1.0, 2.0), 0),  # exact
        (lambda x: x[0] + x[1], (1.0, 2.0**-30), U),
        (lambda x: x[0] * x[1], (3.0, 5.0), 0),
        (lambda x: x[0] / x[1], (1.0, 3.0), U / 3),
        (lambda x: x[0] * T.float32(0.5), (0.3,), 0),
        (lambda x: T.max(x[0], x[1]), (0.1, 0.2), 0),
        (lambda x: T.sqrt(x[0]), (4.0,), 0),
        (lambda x: T.sqrt(x[0]), (2.0,), 2**0.5 * U),
        (lambda x: T.fabs(x[0]), (-0.1,), 0),
        (lambda x: T.floor(x[0]), (1.7,), 0),
    ],
)
def test_errors_of_operations(build, values, error):
    found = error_of(build, *values)[1]
    assert found == pytest.approx(error, rel=1e-6, abs=2.0**-149)


@pytest.mark.parametrize(("value", "error"), [(3.0, 0), (3 * 2.0**-24, 2.0**-25)])
def test_a_product_of_float16_that_is_too_small_for_its_bits(value, error):
    found = error_of(lambda x: x[0] * T.float16(0.125), value, dtype="float16")[1]
    assert found == pytest.approx(error, rel=0.01)


def test_errors_are_passed_on():
    value, error = error_of(lambda x: (x[0] + x[1]) * x[2], 1.0, 2.0**-30, 1024.0)
    assert error == pytest.approx(1024 * U + 1024 * U, rel=0.1)
    value, error = error_of(lambda x: T.exp(x[0] + x[1]), 1.0, 2.0**-30)
    assert np.e * U < error < 20 * np.e * U
    assert value == pytest.approx(np.exp(1 + 2.0**-30))


def test_a_choice_that_may_turn_out_the_other_way():
    def build(x):
        return T.Select(x[0] + x[1] > T.float32(1), T.float32(5), T.float32(2))

    assert error_of(build, 1.0, 2.0**-30) == (5, 3)  # above 1 by less than it may be off
    assert error_of(build, 1.0, 0.25) == (5, 0)
    assert error_of(build, 1.0, 0.0) == (2, 0)


def test_a_condition_that_another_one_chooses():
    def build(x):
        one, other = x[1] > T.float32(0.5), x[0] * x[0] > T.float32(0.01)
        inner = T.Select(x[0] + x[1] > T.float32(1), one, other)
        return T.Select(inner, T.float32(5), T.float32(2))

    assert error_of(build, 1.0, 2.0**-30) == (2, 3)  # either of the two may be asked
    assert error_of(build, 1.0, 0.75) == (5, 0)
    assert error_of(build, 0.25, 0.25) == (5, 0)
    assert error_of(build, 0.1, 0.0) == (5, 3)  # a square that may be below


def test_numbers_that_a_type_does_not_hold_are_infinite_to_a_kernel():
    assert error_of(lambda x: x[0] * x[1], 1e30, 1e30)[1] == np.inf
    assert error_of(lambda x: T.exp(x[0]), 100.0)[1] == np.inf
    assert error_of(lambda x: x[0] * x[1], np.inf, 1e30) == (np.inf, 0)
    assert error_of(lambda x: x[0] / (T.float32(1) + T.exp(x[1])), 1.0, 100.0)[1] < 1e-43


def test_a_sum_that_a_type_does_not_hold_is_infinite_to_a_kernel():
    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((8,), "float32"), S: T.Buffer((1,), "float32"), Y: T.Buffer((1,))):
        S[0] = T.float32(0)
        for k in range(8):
            S[0] = S[0] + X[k] * X[k]
        Y[0] = S[0] * T.float32(1e-30)

    for values, lost in ((np.full(8, 1e19, "float32"), True), (np.full(8, 1e18, "float32"), False)):
        arrays = [values, np.zeros(1, "float32"), np.zeros(1, "float32")]
        found = Reference(main).evaluate(arrays, {1: ((0, 0),), 2: ((0, 0),)})
        assert [bool(np.isinf(found[i].error[0])) for i in (1, 2)] == [lost, lost]


@pytest.mark.parametrize("divide", [tirx.floordiv, tirx.floormod, tirx.truncdiv, tirx.truncmod])
def test_an_integer_that_is_divided_by_zero_has_no_value(divide):
    def build(x):
        return divide(x[0], x[1])

    assert error_of(build, 7, 0, dtype="int32")[1] == np.inf
    assert error_of(build, 7, 7, dtype="int32")[1] == 0


def test_an_integer_is_turned_over():
    assert error_of(lambda x: tirx.bitwise_not(x[0]), 5, dtype="int32") == (-6, 0)


def test_a_constant_is_that_of_its_type():
    value, error = error_of(lambda x: x[0] + T.float32(0.1), 0.0)
    assert value == np.float32(0.1)
    assert error == 0


# -- what is refused ------------------------------------------------------------------------------


def refused(build, match, dtype="float32"):
    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((8,), dtype), Y: T.Buffer((8,), dtype)):
        for i in range(8):
            with T.sblock("step"):
                vi = T.axis.spatial(8, i)
                Y[vi] = build(X, vi)

    with pytest.raises(PlainProgramError, match=match):
        Reference(main)


def test_calls_without_a_meaning_are_refused():
    refused(
        lambda x, i: T.call_extern("float32", "secret", x[i]),
        "block step: found a call of call_extern; need an expression whose value",
    )
    refused(lambda x, i: x[T.Cast("int32", x[i] + x[0])], "block step: found .*, which depends on")
    refused(lambda x, i: tirx.Mod(x[i], x[0]), "found the float operation Mod")


def test_expressions_that_are_none_are_refused():
    lifter = Lifter(lambda *_: Number(const(0), None, "float32"), lambda x: x, {}, "block step")
    with pytest.raises(PlainProgramError, match="block step: found the expression Broadcast"):
        lifter.lift(tirx.Broadcast(tirx.const(1, "float32"), 4))


def test_statements_without_a_meaning_are_refused():
    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((8,), "float32")):
        i = T.alloc_buffer((1,), "int32")
        i[0] = 0
        while i[0] < 8:
            X[i[0]] = T.float32(0)
            i[0] = i[0] + 1

    with pytest.raises(
        PlainProgramError, match=r"function main: found .*while .*, a statement whose"
    ):
        read(main)


def test_a_lowered_function_is_refused():
    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((8,), "float32")):
        T.func_attr({"calling_conv": 1})
        X[0] = T.float32(0)

    with pytest.raises(PlainProgramError, match="found function main, which is lowered already"):
        read(main)


def test_a_schedule_and_a_function_are_programs():
    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((8,), "float32")):
        X[0] = T.float32(0)

    assert pick_function(main) is main
    sch = tvm.s_tir.Schedule(tvm.IRModule({"main": main}))
    assert pick_function(sch).same_as(sch.mod["main"])


def test_two_sums_as_one_reduction_are_rounded_as_sums_are():
    x = te.placeholder((8,), "float32", name="X")
    k = te.reduce_axis((0, 8), name="k")
    both = te.comm_reducer(
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
        lambda *types: tuple(te.const(0, t) for t in types),
    )
    s, q = te.compute((1,), lambda _: both((x[k], x[k] * x[k]), axis=k), name="S")
    arrays = [np.arange(8, dtype="float32") / 8 + 1, np.zeros(1, "float32"), np.zeros(1, "float32")]
    arrays[0][3] += 2.0**-20
    found = Reference(te.create_prim_func([x, s, q])).evaluate(arrays, {1: ((0, 0),), 2: ((0, 0),)})
    assert 4 * U < found[1].error[0] < 200 * U  # in another order other numbers are rounded
    assert 4 * U < found[2].error[0] < 400 * U
