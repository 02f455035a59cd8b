"""What the softmax kernels are compared with: numpy in float64, and plain loops."""

import numpy as np
from tvm import te
from tvm.tirx import PrimFunc

LOWEST = -3.0e38  # below every input; exp(LOWEST - x) is zero


def rows_of_softmax(rows: int, columns: int, dtype: str, seed: int) -> np.ndarray:
    """Draw small integers; every other row is far above zero, and every other one far below."""
    x = np.random.default_rng(seed).integers(-3, 4, (rows, columns))
    return (x + np.where(np.arange(rows) % 2 == 0, 120, -120)[:, None]).astype(dtype)


def softmax(x: np.ndarray) -> np.ndarray:
    """Return the softmax of each row in float64."""
    x = x.astype("float64")
    power = np.exp(x - x.max(1, keepdims=True))
    return power / power.sum(1, keepdims=True)


def tolerance(dtype: str) -> float:
    """Return a relative bound: roundings of the output's type, and of sums in float32."""
    return {"float32": 2e-5, "float16": 2e-3}[dtype]


def plain_softmax(rows: int, columns: int, dtype: str) -> PrimFunc:
    """Return the plain program: X (rows, columns), Y (rows, columns), sums in float32."""
    x = te.placeholder((rows, columns), dtype, name="X")
    k, k2 = te.reduce_axis((0, columns), "k"), te.reduce_axis((0, columns), "k2")
    shape = (rows, columns)
    wide = te.compute(shape, lambda i, j: x[i, j].astype("float32"), name="wide")
    top = te.compute((rows,), lambda i: te.max(wide[i, k], k), name="top")
    power = te.compute(shape, lambda i, j: te.exp(wide[i, j] - top[i]), name="power")
    total = te.compute((rows,), lambda i: te.sum(power[i, k2], k2), name="total")
    y = te.compute(shape, lambda i, j: (power[i, j] / total[i]).astype(dtype), name="Y")
    return te.create_prim_func([x, y])
