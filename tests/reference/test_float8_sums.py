"""The bound of sums of float8, against the sums that a tensor core makes."""

import numpy as np
import pytest

from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.reference.evaluate import Reference
from tvm_hopper.sim.arithmetic.elements import float8_sum
from tvm_hopper.testing.contractions import contraction

ROWS, COLUMNS = 24, 40
KINDS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def summed(a, b, dtype):
    total = np.zeros((ROWS, COLUMNS), np.float32)
    for k in range(0, a.shape[1], 32):
        parts = (x[:, k : k + 32].astype(np.float32) for x in (a, b))
        total = float8_sum(*parts, (KINDS[dtype],) * 2, total)
    return total.astype(np.float64)


@pytest.mark.parametrize("dtype", KINDS)
def test_errors_are_within_the_bound(dtype):
    """Of numbers of both signs, of one sign, and of a few large ones."""
    rng = np.random.default_rng(3)
    for k in (64, 512):
        sizes = {"m": ROWS, "n": COLUMNS, "k": k}
        mod = contraction("mk,nk->mn", sizes, (dtype, dtype), "float32")
        reference = Reference(mod, float8=True)
        for kind in ("normal", "positive", "outliers"):
            a, b = rng.standard_normal((ROWS, k)), rng.standard_normal((COLUMNS, k))
            if kind == "positive":
                a, b = abs(a), abs(b)
            if kind == "outliers":
                a[:, 5], b[:, 5], b[:, 40] = 100 * a[:, 5], 100 * b[:, 5], 50
            a, b = (x.astype(DTYPES[dtype].numpy) for x in (a, b))
            found = reference.evaluate([a, b, np.zeros((ROWS, COLUMNS), np.float32)], WHOLE)[2]
            exact = a.astype(np.float64) @ b.astype(np.float64).T
            np.testing.assert_allclose(found.value, exact, rtol=1e-12, atol=1e-12)
            part = np.max(abs(summed(a, b, dtype) - exact) / found.error)
            assert part < 1
            assert part > 0.2 or kind != "normal" or dtype == "float8_e5m2"


WHOLE = {2: ((0, ROWS - 1), (0, COLUMNS - 1))}


def test_whole_numbers_are_exact_below_two_to_the_14():
    mod = contraction("mk,nk->mn", {"m": ROWS, "n": COLUMNS, "k": 256}, ("float8_e4m3fn",) * 2)
    a, b = (np.full((x, 256), 8).astype(DTYPES["float8_e4m3fn"].numpy) for x in (ROWS, COLUMNS))
    out = np.zeros((ROWS, COLUMNS), np.float32)
    for factor, lossless in ((8, True), (9, False)):
        b[:] = factor
        found = Reference(mod, float8=True).evaluate([a, b, out], WHOLE)[2]
        assert (found.error == 0).all() == lossless
