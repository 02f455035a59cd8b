"""Softmax and its relatives of scaled rows, and rows at the limits of their type, for tests.

mod = masked_rows.program("softmax", "scale", 8, 1024, "bfloat16")     # softmax(X * 0.3)
x = masked_rows.rows(1024, "bfloat16")                                 # one of each kind
want = masked_rows.reference("softmax", "scale", x)
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import te

from tvm_hopper.testing.memory_bound import _f, _max, _sum, _tensors
from tvm_hopper.testing.tiling import module_of

NAMES = ("softmax", "log_softmax", "log_sum_exp", "cross_entropy")
FACTORS = {"scale": 0.3, "temperature": 1.7}  # X * 0.3, X / 1.7
KINDS = 8  # of rows
LABEL = 3  # of every row


def program(name: str, factor: str, num_rows: int, columns: int, dtype: str) -> tvm.IRModule:
    """Build one of NAMES of the rows, multiplied or divided by a number as FACTORS says."""
    (x,) = _tensors("X", [(num_rows, columns)], dtype)
    number = te.const(FACTORS[factor], "float32")

    def scaled(i: Any, j: Any) -> Any:
        return _f(x[i, j]) * number if factor == "scale" else _f(x[i, j]) / number

    m = _max(num_rows, columns, scaled, "M")
    s = _sum(num_rows, columns, lambda i, k: te.exp(scaled(i, k) - m[i]), "S")
    if name in ("log_sum_exp", "cross_entropy"):

        def value(i: Any) -> Any:
            total = te.log(s[i]) + m[i]
            return total if name == "log_sum_exp" else total - scaled(i, LABEL)

        return module_of(x, te.compute((num_rows,), value, name="Y"))

    def element(i: Any, j: Any) -> Any:
        shifted = scaled(i, j) - m[i]
        return (te.exp(shifted) / s[i] if name == "softmax" else shifted - te.log(s[i])).astype(
            dtype
        )

    return module_of(x, te.compute(x.shape, element, name="Y"))


def rows(columns: int, dtype: str) -> np.ndarray:
    """Draw a row of each kind: masked by the least number or by -inf, constant, large, NaN."""
    least = float(ml_dtypes.finfo(dtype).min)
    x = np.random.default_rng(0).standard_normal((KINDS, columns))
    x[0] = least
    x[1, : columns // 2] = -np.inf
    x[2] = 3.7
    x[3] *= 1e4
    x[4], x[4, columns // 3] = least, least / 2
    x[5, LABEL:] = least
    x[6, columns // 2] = np.nan
    x[7] = -np.inf
    return x.astype(np.dtype(dtype))


def reference(name: str, factor: str, x: np.ndarray) -> np.ndarray:
    """Compute the program as it says, each product and difference rounded; sums in float64."""
    number, lowest = np.float32(FACTORS[factor]), np.finfo("float32").min
    with np.errstate(all="ignore"):
        wide = x.astype("float32")
        t = wide * number if factor == "scale" else wide / number
        m = np.maximum(t.max(-1, keepdims=True), lowest)
        shifted = t - m
        e = np.exp(shifted.astype("float64"))
        s = e.sum(-1, keepdims=True)
        total = np.log(s).astype("float32")
        return {
            "softmax": lambda: e / s,
            "log_softmax": lambda: shifted - total,
            "log_sum_exp": lambda: (total + m)[:, 0],
            "cross_entropy": lambda: (total + m)[:, 0] - t[:, LABEL],
        }[name]().astype("float64")


def is_close(got: Any, want: np.ndarray, dtype: str) -> bool:
    """Compare a result with the reference: relative, and as exact as exponentials are."""
    with np.errstate(all="ignore"):
        rounded = want.astype(np.dtype(dtype) if want.ndim == 2 else "float32").astype("float64")
    tolerance = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
    return bool(
        np.allclose(got, rounded, tolerance, 1e-7 if want.ndim == 2 else 1e-4, equal_nan=True)
    )
