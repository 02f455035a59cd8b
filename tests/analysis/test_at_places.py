"""Integer expressions at many places."""

import numpy as np
import pytest
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.at_places import at_places

X, Y = ir.Var("x", "int32"), ir.Var("y", "int32")
VALUES = {X: np.arange(-4, 8), Y: np.arange(12) + 1}


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, y, least: x * 3 + 5 - y,
        lambda x, y, least: x // 4 * 2 + x % 4,
        lambda x, y, least: least(x, y),
        lambda x, y, least: x * 2 < y,
        lambda x, y, least: x >= y,
    ],
)
def test_as_numpy_has_it(compute):
    least = {True: np.minimum, False: tirx.min}
    want = compute(VALUES[X], VALUES[Y], least[True])
    np.testing.assert_array_equal(at_places(compute(X, Y, least[False]), VALUES), want)


def test_a_wider_type():
    np.testing.assert_array_equal(at_places(X.astype("int64") + 1, VALUES), VALUES[X] + 1)


@pytest.mark.parametrize("expr", [ir.Var("z", "int32") + X, X.astype("int8"), tirx.truncdiv(X, Y)])
def test_what_is_none_of_these(expr):
    with pytest.raises(KeyError):
        at_places(expr, VALUES)
