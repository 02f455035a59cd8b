"""argmax and argmin of rows of infinities and least numbers are places of the row."""

import numpy as np
import pytest
from tvm import relax

from tests.relax import models
from tvm_hopper.relax.row_places import RowPlaces
from tvm_hopper.testing.relax_forms import model_of


@pytest.mark.parametrize("axis", [-1, 0, None])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_places_are_those_of_numpy(name, dtype, axis):
    rows, sign = 6, 1 if name == "argmax" else -1
    x = np.random.default_rng(0).integers(-4, 4, (rows, 40)).astype("float64")
    limits = np.iinfo(dtype) if dtype == "int32" else np.finfo(dtype)
    worst = limits.min if sign == 1 else limits.max
    infinite = worst if dtype == "int32" else -sign * np.inf
    if axis != 0:
        x[2], x[3], x[4, 1::2] = infinite, worst, infinite
    else:
        x[:, 2], x[:, 3], x[1::2, 4] = infinite, worst, infinite
    x = x.astype(dtype)
    mod = model_of(
        lambda given: getattr(relax.op, name)(given, axis, keepdims=axis == 0), (x.shape, dtype)
    )
    (got,) = models.on_processor(relax.get_pipeline("zero")(RowPlaces()(mod)), "main", [x])
    wide = x.astype("float64")
    want = getattr(np, name)(wide, axis)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, np.expand_dims(want, 0) if axis == 0 else want)
