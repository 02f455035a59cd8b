"""Sums of powers of one value: which are found, and what is computed instead."""

import numpy as np
import pytest
import tvm_ffi
from tvm import te, tirx

from tests.transforms.math.test_approximate_functions_plan import evaluate
from tvm_hopper import ir
from tvm_hopper.transforms.math.approximate_functions_plan import times
from tvm_hopper.transforms.math.polynomials import horner

X, Y = ir.Var("x", "float32"), ir.Var("y", "float32")


def c(number):
    """Return a constant."""
    return te.const(number, "float32")


SUMS = {
    "the cubic of gelu": (c(0.8) * (X + c(0.04) * X * X * X), lambda x: 0.8 * (x + 0.04 * x**3), 4),
    "differences": (X - c(0.5) * (X * X), lambda x: x - 0.5 * x**2, 3),
    "a constant": (c(2) + X * X * c(3), lambda x: 2 + 3 * x**2, 3),
    "of a sum": ((X + Y) * (X + Y) * c(2) + (X + Y), lambda x: 2 * (x + 1) ** 2 + x + 1, 3),
    "several powers": (
        X + X * X * X * c(0.5) + X * X * X * X * X * c(0.25),
        lambda x: x + 0.5 * x**3 + 0.25 * x**5,
        6,
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_powers(name):
    node, exact, most = SUMS[name]
    found = horner(2.0, node)
    x = np.linspace(-3, 3, 1001, dtype=np.float32)
    got = evaluate(found, {X: x, Y: np.float32(1)})
    scale = np.abs(exact(np.abs(x.astype(float)) + 1)) + 1
    assert (np.abs(got - 2 * exact(x.astype(float))) < 1e-6 * scale).all()
    own = ir.find_all(found, tirx.Mul) + ir.find_all(found, tirx.Add)
    sums = [x for x in own if tvm_ffi.structural_equal(x, X + Y)]
    assert len(own) - len(sums) <= most


@pytest.mark.parametrize(
    "node",
    [X, c(3), c(2) * X, X * X, X + Y * Y, te.exp(X) + X, X * X * X * X * X * X * X * X * X + X],
    ids=["value", "constant", "multiple", "one power", "two values", "a call", "ninth power"],
)
def test_what_is_left(node):
    assert horner(1.0, node) is None


def test_a_product_of_sums_is_left():
    assert horner(1.0, (X + c(1)) * (X + c(2)) + X) is None


def test_a_difference_from_zero_is_a_constant_too():
    assert tvm_ffi.structural_equal(times(3, c(0) - X), c(-3) * X)
    assert tvm_ffi.structural_equal(times(3, c(0) - c(2) * X), c(-6) * X)


@pytest.mark.parametrize("number", [1e30, 1e-30])
def test_constants_that_float32_has_no_number_for_are_left_apart(number):
    x = X + c(number) * X * X
    assert horner(number, x) is None
    assert tvm_ffi.structural_equal(times(number, c(number) * X), c(number) * (c(number) * X))
