"""What WGMMA keeps of a sum of float8, against numbers that follow from the measured rule."""

import numpy as np
import pytest

from tvm_hopper.sim.arithmetic.elements import float8_sum

ULP = 2.0**-13


@pytest.mark.parametrize(
    ("factors", "start", "want"),
    [
        ([(1, 1)], 1.5 * ULP, 1 + ULP),  # the sum so far is cut like a product
        ([(1, 1), (2**-7, 2**-6)], 0, 1 + ULP),
        ([(1, 1), (2**-7, 2**-7)], 0, 1),
        ([(1, 1)] + [(2**-7, 2**-7)] * 31, 0, 1),  # each is cut, not what they add up to
        ([(1, 1), (-(2**-7), 2**-7)], 0, 1),  # toward zero
        ([(1.5, 1.5), (-(2**-7), 2**-6)], 0, 2.25 - 2 * ULP),  # an exponent of 0, not of 2.25
        ([(1, 1)] * 32, 2**14, 2**14),
        ([(0, 448)], 1 + 1.5 * ULP, 1 + ULP),
        ([(0, 0)], -(1 + 1.5 * ULP), -(1 + ULP)),
        ([(2**-9, 2**-9), (2**-6, 2**-6)], 0, 2**-12 + 2**-18),  # subnormal: exponent -6
        ([(1, 1)], np.inf, np.inf),
        ([(np.nan, 0)], 1, np.nan),
    ],
)
def test_cuts(factors, start, want):
    a, b = np.zeros((2, 1, 32), np.float32)
    a[0, : len(factors)], b[0, : len(factors)] = np.float32(factors).T
    found = float8_sum(a, b, ("e4m3", "e4m3"), np.float32([[start]]))
    np.testing.assert_array_equal(found, np.float32([[want]]))
