"""The judge of programs over special values takes any order of a sum, and nothing else."""

import numpy as np

from tests.fuzz.special import Program, judge, values


def test_a_sum_that_cancels_may_have_any_order():
    program = Program(3, "float32", [(4, 64, 64)], summed=True)
    program.do("sum", 0, axis=0)
    (x,) = values(program)
    others = [x[list(order)] for order in ((0, 1, 2, 3), (3, 1, 2, 0), (1, 3, 0, 2))]
    with np.errstate(invalid="ignore"):
        sums = [((y[0] + y[1]) + y[2]) + y[3] for y in others]
        off = sums[0] + np.abs(x).sum(0) * np.float32(1e-5)
    assert not np.array_equal(sums[0], sums[1], equal_nan=True)
    assert not [text for text in (judge(program, y) for y in sums) if text]
    assert "wrong" in judge(program, off)


def test_a_row_with_an_infinity_is_infinite():
    program = Program(0, "float32", [(64, 256)], summed=True)
    program.do("sum", 0, axis=-1)
    (x,) = values(program)
    with np.errstate(invalid="ignore"):
        right = x.astype("float64").sum(-1).astype("float32")
    (rows,) = np.nonzero(np.isinf(right))
    assert len(rows)
    assert not judge(program, right)
    right[rows[0]] = 1.0
    assert judge(program, right).startswith("1 of 64 wrong")
