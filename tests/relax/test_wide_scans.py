"""Running sums and products of bools have kernels of 32-bit integers."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.relax import models
from tvm_hopper.relax.wide_scans import WideScans
from tvm_hopper.testing.relax_forms import model_of


def scan(name: str, elements: str, **given):
    return model_of(lambda x: getattr(relax.op, name)(x, 1, **given), ((3, 40), elements))


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_bools_are_scanned_as_integers(name):
    x = np.random.default_rng(0).integers(0, 9, (3, 40)) == 0
    x = x if name == "cumsum" else ~x
    after = WideScans()(scan(name, "bool"))
    assert 'dtype="int32"' in after["main"].script()
    (got,) = models.on_processor(relax.get_pipeline("zero")(after), "main", [x])
    np.testing.assert_array_equal(got, getattr(np, name)(x.astype("int32"), 1) != 0)


@pytest.mark.parametrize("given", [("int32", {}), ("bool", {"dtype": "int64"})], ids=str)
def test_other_scans_stay(given):
    mod = scan("cumsum", given[0], **given[1])
    assert WideScans()(mod)["main"].script() == mod["main"].script()


def test_no_kernel_has_vectors_of_bools():
    executable = relax.build(
        scan("cumsum", "bool"), target="nvidia/nvidia-h200", relax_pipeline="tvm_hopper"
    )
    assert "ushort4" not in models.device_text(executable.mod)
