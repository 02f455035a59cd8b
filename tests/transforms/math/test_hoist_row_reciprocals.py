"""A quotient by a row's value becomes a product, where nobody sees its rounding."""

from __future__ import annotations

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.math.hoist_row_reciprocals import (
    hoist_row_reciprocals,
)

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
        "Z[bx, tx * 8 + v] = e[v] / s[0]",  # its rounding is seen
        'Y[bx, tx * 8 + v] = T.Cast("bfloat16", s[0] / e[v])',  # by an element
        'Y[bx, tx * 8 + v] = T.Cast("bfloat16", e[v] / T.float32(3))',  # TVM's own business
        'Y[bx, 0] = T.Cast("bfloat16", e[0] / s[0])',  # once a row
        'Y[bx, tx * 8 + v] = T.Cast("bfloat16", e[v] / s[0] - T.float32(1))',  # may cancel
        'Y[bx, tx * 8 + v] = T.Cast("bfloat16", T.exp(e[v] / s[0]))',  # may grow
    ],
)
def test_other_quotients_stay(store):
    func = parse(BEFORE, ("STORE", store))
    check(run(func, hoist_row_reciprocals), func)


def test_the_option_keeps_divisions():
    func = parse(BEFORE, ("STORE", DIVISION)).with_attr("tvm_hopper.functions", "library")
    check(run(func, hoist_row_reciprocals), func)
