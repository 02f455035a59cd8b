"""Which numbers divide an expression whatever its variables are."""

import pytest
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.divisors import divides, divisor

X, N = (ir.Var(name, "int32") for name in "xn")


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (0, 0),
        (12, 12),
        (tirx.IntImm("int64", 12), 12),
        (X, 1),
        (X * 8, 8),
        (X * 8 + 4, 4),
        (X * 8 + N * 12, 4),
        (X * 8 - X * 8, 0),
        (tirx.max(0, tirx.min(64, N * 16)), 16),
        (tirx.min(64, N), 1),
        (tirx.Select(X < 3, N * 6, tirx.const(4, "int32")), 2),
    ],
)
def test_divisor(expr, expected):
    assert divisor(expr) == expected
    for x in range(4):
        value = ir.static_int(ir.simplify(ir.substitute(expr, {X: x, N: 5}))) if expected else 0
        assert value is not None
        assert not expected or value % expected == 0


def test_every_number_divides_nothing():
    assert divides(16, 0)
    assert divides(16, X * 16 + 32)
    assert not divides(16, X * 16 + 8)
