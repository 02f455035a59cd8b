"""HoistReductionInits: registers of sums have their initial values in front of their loop."""

from __future__ import annotations

import pytest

from tests.transforms.scripts import check, check_other_kernel_stays, parse, run
from tvm_hopper.transforms.memory_bound.hoist_reduction_inits import HoistReductionInits

KERNEL = """
def func(X: T.Buffer((1000, 8), "float32"), Y: T.Buffer((16, 8), "float32")):
    for bx in T.thread_binding(16, thread="blockIdx.x", memory_bound="column_reduction"):
        with T.sblock("kernel"):
            total = T.sblock_alloc_buffer((8,), "float32", scope="local")
            FRONT
            for r in range(63):
                for v in T.unroll(8):
                    with T.sblock("sum", where=r * 16 + bx < 1000):
                        FIRST
                        total[v] = total[v] + X[r * 16 + bx, v]
            for v in T.unroll(8):
                Y[bx, v] = total[v]
"""
FIRST = "if r == 0:\n                            total[v] = T.float32(0)"
FRONT = "for v in T.unroll(8):\n                total[v] = T.float32(0)"


def before(first: str = FIRST):
    return parse(KERNEL, ("            FRONT\n", ""), ("FIRST", first))


def test_initial_values_go_in_front_of_the_loop():
    want = parse(KERNEL, ("FRONT", FRONT), ("                        FIRST\n", ""))
    check(run(before(), HoistReductionInits()), want)
    check_other_kernel_stays(before(), want, HoistReductionInits())


@pytest.mark.parametrize(
    "first",
    [
        FIRST.replace("r == 0", "r == 1"),
        FIRST.replace("T.float32(0)", "X[0, v]"),
        "total[v] = T.float32(0)",  # of each turn
    ],
)
def test_what_is_no_initial_value_stays(first):
    check(run(before(first), HoistReductionInits()), before(first))


def test_under_a_condition_alone():
    text = KERNEL.replace("            for r in range(63):\n                for", "            for")
    text = text.replace("r * 16 + bx < 1000", "bx < 7").replace("X[r * 16 + bx, v]", "X[bx, v]")
    given = parse(text, ("            FRONT\n", ""), ("FIRST", "total[v] = T.float32(0)"))
    want = parse(text, ("FRONT", FRONT), ("                        FIRST\n", ""))
    check(run(given, HoistReductionInits()), want)
