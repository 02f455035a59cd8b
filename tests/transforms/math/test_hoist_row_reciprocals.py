"""A quotient by a row's value becomes a product, where nobody sees its rounding."""

import numpy as np
import pytest

from tests.transforms.scripts import changed, check, given, notes_of, parse, run
from tvm_hopper.codegen_patches.approximations import divide
from tvm_hopper.sim.translate.device_math import math
from tvm_hopper.transforms.math.hoist_row_reciprocals import ROUNDED_NOTE, hoist_row_reciprocals

STEP = hoist_row_reciprocals

BEFORE = """
def func(Y: T.Buffer((8, 2048), "bfloat16"), Z: T.Buffer((8, 2048), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x", memory_bound="row_reduction"):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("kernel"):
                e = T.sblock_alloc_buffer((8,), "float32", scope="local")
                s = T.sblock_alloc_buffer((1,), "float32", scope="local")
                for v in T.unroll(8):
                    with T.sblock("Y"):
                        STORE
"""
DIVISION = 'Y[bx, tx * 8 + v] = T.Cast("bfloat16", e[v] / s[0])'
SCALE = (
    "T.Select(T.fabs(s[0]) < T.float32(2.0**-64), T.float32(2.0**64), "
    "T.Select(T.fabs(s[0]) > T.float32(2.0**64), T.float32(2.0**-64), T.float32(1)))"
)
PRODUCT = (
    f'Y[bx, tx * 8 + v] = T.Cast("bfloat16", e[v] * {SCALE} * (T.float32(1) / (s[0] * {SCALE})))'
)


def test_a_quotient_becomes_a_product():
    got = run(parse(BEFORE, ("STORE", DIVISION)), hoist_row_reciprocals)
    check(got, parse(BEFORE, ("STORE", PRODUCT)))


@pytest.mark.parametrize(
    "store",
    [
        "Z[bx, tx * 8 + v] = QUOTIENT",  # its rounding is seen
        'Y[bx, tx * 8 + v] = T.Cast("bfloat16", QUOTIENT - T.float32(1))',  # may cancel
        'Y[bx, tx * 8 + v] = T.Cast("bfloat16", T.exp(QUOTIENT))',  # may grow
    ],
)
def test_a_quotient_whose_rounding_is_seen_has_a_remainder(store):
    got = run(parse(BEFORE, ("STORE", store.replace("QUOTIENT", "e[v] / s[0]"))), STEP)
    value = f"divide(e[v] * {SCALE}, s[0] * {SCALE}, T.float32(1) / (s[0] * {SCALE}))"
    want = changed(BEFORE, ("STORE", store.replace("QUOTIENT", value)))
    check(got, given(divide=divide)(want))
    assert [x.text for x in notes_of(got)] == [ROUNDED_NOTE]


def test_quotients_are_rounded_as_divisions_are():
    """Of float32, in the order of the text; those by zero, infinite ones, and ties are the same."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(100_000).astype("float32") for _ in "xy")
    ends = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1.5, -4.5, 3.4e38])
    divisors = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 3, 9, 0.5])
    x = np.concatenate([x, np.repeat(ends, len(divisors))])
    y = np.concatenate([y, np.tile(divisors, len(ends))])
    with np.errstate(all="ignore"):
        want = x / y
        got = math("tvm_hopper_divide_by", np.dtype("float32"), x, y, np.float32(1) / y)
    assert np.array_equal(got, want, equal_nan=True)


@pytest.mark.parametrize(
    "store",
    [
        'Y[bx, tx * 8 + v] = T.Cast("bfloat16", s[0] / e[v])',  # by an element
        'Y[bx, tx * 8 + v] = T.Cast("bfloat16", e[v] / T.float32(3))',  # TVM's own business
        'Y[bx, 0] = T.Cast("bfloat16", e[0] / s[0])',  # once a row
        "Z[bx, tx * 8 + v] = T.float32(2) / s[0]",  # the same for all elements
    ],
)
def test_other_quotients_stay(store):
    func = parse(BEFORE, ("STORE", store))
    check(run(func, hoist_row_reciprocals), func)


def test_the_option_keeps_divisions():
    func = parse(BEFORE, ("STORE", DIVISION)).with_attr("tvm_hopper.functions", "library")
    check(run(func, hoist_row_reciprocals), func)
