"""Bounds of functions that are not monotone: what their arguments' errors can do, by trying."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.reference.evaluate import Reference

NUMPY = {
    "cosh": np.cosh, "tan": np.tan, "acosh": np.arccosh, "atanh": np.arctanh,
    "atan2": np.arctan2, "hypot": np.hypot, "copysign": np.copysign,
}  # fmt: skip
NEAR = [0.0, 1e-9, -1e-9, 1.0, -1.0, 1 + 1e-9, np.pi / 2, np.pi / 2 + 1e-7, 0.3, -20.0, 3.0, 1e4]
N = len(NEAR)


@pytest.mark.parametrize("name", NUMPY)
def test_no_argument_inside_of_its_error_breaks_the_bound(name):
    function, two = getattr(T, name), name in ("atan2", "hypot", "copysign")

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((N,), "float32"), Z: T.Buffer((N,), "float32"), Y: T.Buffer((N, N), "float32"),
        U: T.Buffer((N, N), "float32"), V: T.Buffer((N, N), "float32"),
    ):  # fmt: skip
        for i, j in T.grid(N, N):  # U and V tell what the arguments are, and how exact
            U[i, j] = X[i] + Z[i]
            V[i, j] = X[j] + Z[j]
            if two:
                Y[i, j] = function(X[i] + Z[i], X[j] + Z[j])
            else:
                Y[i, j] = function(X[i] + Z[i])

    x = np.array(NEAR, "float32")
    arrays = [x, (np.array(NEAR) - x).astype("float32"), *np.zeros((3, N, N), "float32")]
    box = ((0, N - 1), (0, N - 1))
    found = Reference(main).evaluate(arrays, {place: box for place in (2, 3, 4)})
    result, u, v = (found[place] for place in (2, 3, 4))
    with np.errstate(all="ignore"):
        for a in np.linspace(-1, 1, 9):
            for b in np.linspace(-1, 1, 9) if two else [0]:
                moved = [u.value + a * u.error, v.value + b * v.error][: 1 + two]
                gap = np.abs(NUMPY[name](*moved) - result.value)
                wrong = gap > result.error * 1.01 + 1e-300
                assert not wrong.any(), np.argwhere(wrong)
    assert np.isfinite(result.error).mean() > 0.3
