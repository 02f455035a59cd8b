"""Pooling and depthwise convolutions by `hs.pointwise`: values, widths of loads, refusals."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tests.schedule.programs import axis, module, tensor
from tests.schedule.refuse import refuse
from tvm_hopper import schedule as hs
from tvm_hopper.dlight.rule import check_function
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import windows

SHORT = (("on_wait", 0),)
H200 = tvm.target.Target("nvidia/nvidia-h200")


def scheduled(mod, config=None):
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch, config=config)
    return sch


@pytest.mark.parametrize(
    ("layout", "shape"), [("NHWC", (1, 5, 6, 24)), ("NCHW", (1, 3, 5, 6))], ids=["NHWC", "NCHW"]
)
def test_a_depthwise_convolution(layout, shape):
    sch = scheduled(windows.depthwise(shape, layout))
    verify(sch, runs=SHORT).require_clean()
    rng = np.random.default_rng(0)
    params = sch.mod["main"].params
    inputs = [rng.standard_normal([int(x) for x in p.shape]).astype("float16") for p in params[:3]]
    result = simulate(load(sch), dict(zip("XKB", inputs, strict=True)))
    want = windows.depthwise_reference(inputs, layout)
    np.testing.assert_allclose(result.outputs["Y"].astype("float64"), want, rtol=2e-3, atol=2e-3)


def test_channels_that_lie_side_by_side_are_vectors():
    found = {
        layout: check_function(scheduled(windows.depthwise(shape, layout)).mod["main"], H200)
        for layout, shape in (("NHWC", (2, 8, 8, 64)), ("NCHW", (2, 64, 8, 8)))
    }
    assert not found["NHWC"]
    assert found["NCHW"]  # padded along a vector


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pooling(kind):
    verify(scheduled(windows.pool((2, 6, 8, 16), kind)), runs=SHORT).require_clean()


def test_large_windows_along_rows():
    """Loops of which the last are unrolled, and a value that all rows share."""
    x, w, a, b = tensor(3, 20, 32), tensor(32, name="W"), axis(6, "a"), axis(7, "b")
    s = te.compute((3, 15, 26), lambda n, i, j: te.max(x[n, i + a, j + b], [a, b]), name="S")
    y = te.compute((3, 15, 26), lambda n, i, j: s[n, i, j] * w[j], name="Y")
    verify(scheduled(module(x, w, y)), runs=SHORT).require_clean()


def window(value, shape=(64,), size=3, reduce=te.sum, dtype="float32"):
    x, k = tensor(80, dtype=dtype), axis(size)
    p = te.compute((80,), lambda i: te.exp(x[i]) if value == "exp" else x[i] + x[i], name="P")
    s = te.compute(shape, lambda i: reduce(p[i + k], k), name="S")
    return module(x, s)


def product():
    a, b, k = tensor(16, 8, name="A"), tensor(8, 16, name="B"), axis(8)
    return module(a, b, te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C"))


@pytest.mark.parametrize(
    ("mod", "match"),
    [
        (
            lambda: window("", (8,), 65),
            "block S: found a reduction of 65 elements; need .* most 64",
        ),
        (product, "block C: found a reduction of what several results share; need a window of its"),
        (lambda: window("exp"), "block P: found an expensive value that each window of S would"),
        (lambda: window("", dtype="float16"), r"S: found a reduction in float16; .*hs.widen_sums"),
        (
            lambda: window("", reduce=te.comm_reducer(lambda a, b: a * b + b, lambda _: 1.0)),
            "block S: found a window that is reduced in another way; need a sum, a product",
        ),
    ],
)
def test_refusals(mod, match):
    refuse(mod(), match, helper=hs.pointwise)


def test_sixteen_bits_after_widening():
    mod = hs.widen_sums(window("", dtype="float16"))
    verify(scheduled(mod), runs=SHORT).require_clean()
