"""Schedule a pointwise program, run its device function in the simulator, compare with float64."""

from typing import Any

import numpy as np
from tvm import s_tir

from tests.sim_kernels.kernels import RUNS
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import pointwise

TOLERANCE = {"float32": 2e-6, "float16": 2e-3}


def scheduled(
    name: str, shape: tuple[int, ...], tiling: pointwise.Tiling, dtype: str
) -> tuple[Any, s_tir.Schedule]:
    """Return a program of `testing.pointwise` as it was, and scheduled."""
    mod = getattr(pointwise, name)(*shape, dtype)
    return mod, pointwise.schedule(mod, tiling)


def check(
    name: str,
    shape: tuple[int, ...],
    tiling: pointwise.Tiling,
    dtype: str = "float32",
    policy: str = "on_wait",
) -> None:
    """Run one kernel on small integers: float64's values, and a clean verdict."""
    _, sch = scheduled(name, shape, tiling, dtype)
    kernel = load(sch.mod)
    rng = np.random.default_rng(1)
    shapes = {"exp_add": (shape, shape), "scale": (shape,), "add_row_bias": (shape, shape[:1])}
    inputs = [rng.integers(-3, 4, x).astype(dtype) for x in shapes[name]]
    names = {"exp_add": "AB", "scale": "A", "add_row_bias": ("A", "bias")}[name]
    values = dict(zip(names, inputs, strict=True))
    result = simulate(kernel, values, policy, 0)
    assert not result.findings, "\n".join(map(str, result.findings))
    want, got = pointwise.reference(name, inputs), result.outputs["C"]
    assert got.shape == shape
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(got.astype(float), want, rtol=tolerance, atol=tolerance)
    for tensor, value in values.items():
        np.testing.assert_array_equal(result.outputs[tensor], value)  # inputs stay as they are
    verify(kernel, values, RUNS, max_ctas=2).require_clean()
