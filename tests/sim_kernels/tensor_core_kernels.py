"""Schedule a product for mma.sync, run its device function in the simulator, compare."""

from typing import Any

import ml_dtypes
import numpy as np

from tests.sim_kernels.kernels import RUNS
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import tensor_cores
from tvm_hopper.testing.tensor_cores import ProductKind, WarpTiling

USUAL = ProductKind()


def scheduled(shape: tuple[int, int, int], tiling: WarpTiling, kind: ProductKind = USUAL) -> Any:
    """Return the schedule of a product of rows, columns and depth."""
    mod = tensor_cores.matmul(*shape, kind.dtype, kind.out_dtype, kind.transposed)
    return tensor_cores.schedule(mod, tiling)


def make_inputs(shape: tuple[int, int, int], kind: ProductKind) -> dict[str, np.ndarray]:
    """Return small whole numbers: sums of their products are exact in every type here."""
    m, n, k = shape
    dtype = ml_dtypes.bfloat16 if kind.dtype == "bfloat16" else np.dtype(kind.dtype)
    rng = np.random.default_rng(1)
    b_shape = (n, k) if kind.transposed else (k, n)
    return {x: rng.integers(-3, 4, s).astype(dtype) for x, s in (("A", (m, k)), ("B", b_shape))}


def check(
    shape: tuple[int, int, int],
    tiling: WarpTiling,
    kind: ProductKind = USUAL,
    policy: str = "on_wait",
    every_schedule: bool = True,
) -> None:
    """Run one kernel: float64's values, and a clean verdict, of this schedule or of every one."""
    kernel = load(scheduled(shape, tiling, kind).mod)
    values = make_inputs(shape, kind)
    result = simulate(kernel, values, policy, 0)
    assert not result.findings, "\n".join(map(str, result.findings))
    want = tensor_cores.reference(values["A"], values["B"], kind.transposed)
    np.testing.assert_array_equal(result.outputs["C"].astype(float), want)
    for tensor, value in values.items():
        np.testing.assert_array_equal(result.outputs[tensor], value)  # inputs stay as they are
    if not every_schedule:
        return
    verify(kernel, values, RUNS, max_ctas=2).require_clean()
