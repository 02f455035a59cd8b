"""Reductions over dimensions with others behind them, on a GPU."""

import numpy as np
import pytest
import tvm

from tests.gpu.test_backward import run
from tvm_hopper import schedule as hs
from tvm_hopper.testing import any_axis

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

TARGET = "nvidia/nvidia-h200"
TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}
# kept in registers; loaded by each pass; shared by thread blocks; odd sizes; pixels
SHAPES = [
    (64, 300, 64),
    (512, 2048, 64),
    (4, 30001, 64),
    (3, 1000, 100),
    (7, 1001, 3),
    (2, 96, 7, 7),
]


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", any_axis.ANY_AXIS)
def test_programs(name, shape, dtype):
    mod = any_axis.ANY_AXIS[name](shape, (1,), dtype)
    given = any_axis.inputs(name, shape, (1,), np.random.default_rng(1))
    with tvm.target.Target(TARGET):
        read, got = run(mod, hs.column_reduction, given)
    for one, want in zip(got, any_axis.reference(name, read, (1,)), strict=True):
        scale = np.abs(want) + np.abs(want).mean() / 10 + 1e-6
        error = np.abs(one.reshape(want.shape) - want) / scale
        assert np.quantile(error, 0.999) < TOLERANCE[dtype]
        assert np.all(error < 100 * TOLERANCE[dtype])  # of sums that cancel
