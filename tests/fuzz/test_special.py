"""The judge of programs over special values takes any order of a sum, and nothing else."""

import numpy as np
import pytest

from tests.fuzz.special import judge, values
from tests.fuzz.special_steps import NUMPY, Program, evaluate, moved_by_steps, wrong


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


@pytest.mark.parametrize("last", ["softmax", "argmin"])
def test_a_product_that_is_added_to_may_be_fused_and_nothing_between(last):
    program = Program(31, "float16", [(65, 1024)] * 2)
    program.do(last, program.do("add", program.do("scale", 0, by=0.375), 1), axis=-1)
    inputs = values(program)
    ways = [evaluate(program, inputs, True, fused) for fused in (False, True)]
    assert not np.array_equal(*ways, equal_nan=True)
    assert not [text for text in (judge(program, way) for way in ways) if text]
    if last == "argmin":
        neither = np.isfinite(inputs).all((0, 2)).nonzero()[0][0]
        ways[0][neither] = (max(way[neither] for way in ways) + 1) % 1024
        assert judge(program, ways[0]).startswith("1 of 65 wrong")


def test_a_zero_that_is_rounded_and_scaled_by_an_infinity_has_any_sign():
    """4096 equal numbers, whose mean float32 rounds, and a weight of -inf."""
    program = Program(31000089, "float32", [(65, 4096), (4096,), (4096,)], summed=True)
    program.do("layer_norm", 0, 1, 2)
    inputs = values(program)
    assert np.isinf(inputs[1]).all()
    exact, right = evaluate(program, inputs, False), evaluate(program, inputs, True)
    (row, *_), _ = (np.isnan(exact) & np.isinf(right)).nonzero()
    assert len(np.unique(inputs[0][row])) == 1
    for sign in (1, -1):
        right[row] *= sign
        assert not judge(program, right)
    right[row, 7] = 1.0
    assert judge(program, right).startswith("1 of 266240 wrong")


def test_a_difference_that_cancels_has_the_error_of_its_operands():
    """Erf(silu(x) - x), where silu of 7 is one unit in the last place off, and 0.006 are left."""
    program = Program(9117, "float32", [(64, 256)])
    program.do("erf", program.do("subtract", program.do("silu", 0), 0))
    (x,) = values(program)
    with np.errstate(all="ignore"):
        silu = NUMPY["silu"](x.astype("float64")).astype("float32")
        exact, rounded = (evaluate(program, [x], way) for way in (False, True))

        def behind(found):
            return NUMPY["erf"](found - x).astype("float32")

        above = np.where(np.isfinite(silu), np.nextafter(silu, np.float32(np.inf)), silu)
        near, far = behind(above), behind(silu * np.float32(1 + 1e-6))
        without = NUMPY["erf"](silu).astype("float32")
    assert wrong(near, exact, rounded, "float32").any()
    assert not judge(program, near)
    for other in (far, without, np.nan_to_num(near)):
        assert "wrong" in judge(program, other)


def test_a_gelu_near_zero_has_the_error_of_the_sum_in_it():
    """gelu(-5) * x, where float32's 1 + erf(u) is a few units of 2^-24; silu has no such sum."""
    program = Program(92711000076, "float32", [(1, 4571)])
    program.do("multiply", program.do("gelu", program.do("ceil", 0)), 0)
    x = np.float32([[-5.9, -5.5, -5.1]])
    gelu = NUMPY["gelu"](np.float64([[-5.0]]))
    exact, rounded = (evaluate(program, [x], way) for way in (False, True))
    bound = moved_by_steps(program, [x], exact)
    unit = 2.5 * 2.0**-24  # of erf
    for units, is_wrong in ((1, False), (-2, False), (8, True)):
        found = ((gelu + units * unit) * x).astype("float32")
        assert wrong(found, exact, rounded, "float32", moved=bound).all() == is_wrong
        assert wrong(found, exact, rounded, "float32", moved=bound).any() == is_wrong
    program.steps[1] = ("silu", (1,), {})
    found = (NUMPY["silu"](np.float64([[-5.0]])) + 2 * unit) * x
    silu = evaluate(program, [x], False)
    assert wrong(found, silu, silu, "float32", moved=moved_by_steps(program, [x], silu)).any()


@pytest.mark.parametrize(("name", "sign"), [("argmax", 1), ("argmin", -1)])
def test_places_of_rows_that_nothing_but_the_least_number_is_in(name, sign):
    least = np.finfo(np.float32).min
    x = np.float64([[-np.inf, least], [least, -1], [-np.inf, -np.inf], [-np.inf, -2]]) * sign
    np.testing.assert_array_equal(NUMPY[name](x, 1), [0, 1, 0, 1])
