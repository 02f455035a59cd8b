"""Dimensions that an index walks through as through one."""

import pytest
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.digits import find_runs, merge

X, C, S = (ir.Var(name, "int32") for name in "xcs")


@pytest.mark.parametrize(
    ("indices", "shape", "strides", "want"),
    [
        ((X // 50, X % 50, C), (3, 50, 8), (400, 8, 1), ((0, 1), (2,))),
        ((X // S, X % S, C), (3, S, 8), (S * 8, 8, 1), ((0, 1), (2,))),
        ((C, X // 12, X // 4 % 3, X % 4), (2, 5, 3, 4), (60, 12, 4, 1), ((0,), (1, 2, 3))),
        ((C // 50 + 1, C % 50), (3, 50), (50, 1), ((0, 1),)),
        ((X // 50, X % 50, C), (3, 50, 8), (416, 8, 1), ((0,), (1,), (2,))),  # apart in memory
        ((X // 50, X % 50, C), (3, 60, 8), (480, 8, 1), ((0,), (1,), (2,))),  # a part of it
        ((X // 50, X % 40, C), (3, 50, 8), (400, 8, 1), ((0,), (1,), (2,))),
        ((X, C), (3, 50), (50, 1), ((0,), (1,))),
        ((), (), (), ()),
    ],
)
def test_runs(indices, shape, strides, want):
    assert find_runs(indices, [tirx.const(x) if isinstance(x, int) else x for x in shape],
                     strides) == want  # fmt: skip


def test_the_index_of_a_run():
    shape = [tirx.const(n, "int32") for n in (5, 3, 4)]
    assert merge([X // 12, X // 4 % 3, X % 4], shape).same_as(X)
