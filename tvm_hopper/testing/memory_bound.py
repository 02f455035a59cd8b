"""Elementwise programs and reductions of rows, as te writes them, for tests, docs and benchmarks.

mod = memory_bound.rms_norm(128, 4096)
hs.row_reduction(sch := s_tir.Schedule(mod))

Results are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import te

from .tiling import module_of

Extent = Any  # an int, or a name, which makes a symbolic extent
EPSILON = 1e-5


def rms_norm(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build Y = X / sqrt(mean(X^2) + e) * W."""
    x, w = _tensors("XW", [(rows, columns), (columns,)], dtype)
    y = _rms(x, x, w, columns, dtype)
    return module_of(x, w, y)


def add_rms_norm(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build H = X + R and Y, the RMS norm of it."""
    x, r, w = _tensors("XRW", [(rows, columns), (rows, columns), (columns,)], dtype)
    h = te.compute(x.shape, lambda i, j: (_f(x[i, j]) + _f(r[i, j])).astype(dtype), name="H")
    return module_of(x, r, w, h, _rms(h, h, w, columns, dtype))


def _rms(x: Any, again: Any, w: Any, columns: int, dtype: str) -> Any:
    s = _sum(x.shape[0], columns, lambda i, k: _f(x[i, k]) * _f(x[i, k]), "S")
    scale = te.compute(s.shape, lambda i: te.rsqrt(s[i] / _const(columns) + _const(EPSILON)))
    return te.compute(
        x.shape, lambda i, j: (_f(again[i, j]) * scale[i] * _f(w[j])).astype(dtype), name="Y"
    )


def layer_norm(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build the layer norm: mean, then variance about it, then scale and shift."""
    x, w, b = _tensors("XWB", [(rows, columns), (columns,), (columns,)], dtype)
    s = _sum(x.shape[0], columns, lambda i, k: _f(x[i, k]), "S")
    mean = te.compute(s.shape, lambda i: s[i] / _const(columns), name="mean")

    def square(i: Any, k: Any) -> Any:
        return (_f(x[i, k]) - mean[i]) * (_f(x[i, k]) - mean[i])

    v = _sum(x.shape[0], columns, square, "V")

    def value(i: Any, j: Any) -> Any:
        scale = te.rsqrt(v[i] / _const(columns) + _const(EPSILON))
        return ((_f(x[i, j]) - mean[i]) * scale * _f(w[j]) + _f(b[j])).astype(dtype)

    return module_of(x, w, b, te.compute(x.shape, value, name="Y"))


def softmax(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build the softmax of rows: the greatest, then exponentials, then their sum."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    m = _max(x.shape[0], columns, lambda i, k: _f(x[i, k]), "M")
    e = te.compute(x.shape, lambda i, j: te.exp(_f(x[i, j]) - m[i]), name="E")
    s = _sum(x.shape[0], columns, lambda i, k: e[i, k], "S")
    y = te.compute(x.shape, lambda i, j: (e[i, j] / s[i]).astype(dtype), name="Y")
    return module_of(x, y)


def log_softmax(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build the logarithm of the softmax of rows."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    m = _max(x.shape[0], columns, lambda i, k: _f(x[i, k]), "M")
    s = _sum(x.shape[0], columns, lambda i, k: te.exp(_f(x[i, k]) - m[i]), "S")
    y = te.compute(
        x.shape, lambda i, j: (_f(x[i, j]) - m[i] - te.log(s[i])).astype(dtype), name="Y"
    )
    return module_of(x, y)


def row_max(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build the greatest element of each row, in float32."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    return module_of(x, _max(x.shape[0], columns, lambda i, k: _f(x[i, k]), "Y"))


def row_sum(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build the sum of each row, in float32."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    return module_of(x, _sum(x.shape[0], columns, lambda i, k: _f(x[i, k]), "Y"))


def row_mean(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build the mean of each row."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    s = _sum(x.shape[0], columns, lambda i, k: _f(x[i, k]), "S")
    y = te.compute(s.shape, lambda i: (s[i] / _const(columns)).astype(dtype), name="Y")
    return module_of(x, y)


def gelu_mul(rows: Extent, columns: Extent, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build Y = gelu(X) * Z, by the error function."""
    return _gated(rows, columns, dtype, _gelu)


def silu_mul(rows: Extent, columns: Extent, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build Y = X / (1 + exp(-X)) * Z."""
    return _gated(rows, columns, dtype, lambda v: v / (_const(1) + te.exp(_const(0) - v)))


def _gelu(value: Any) -> Any:
    return value * _const(0.5) * (te.erf(value * _const(math.sqrt(0.5))) + _const(1))


def _gated(rows: Extent, columns: Extent, dtype: str, gate: Callable[[Any], Any]) -> tvm.IRModule:
    x, z = _tensors("XZ", [(rows, columns)] * 2, dtype)
    g = te.compute(x.shape, lambda i, j: gate(_f(x[i, j])), name="G")
    y = te.compute(x.shape, lambda i, j: (g[i, j] * _f(z[i, j])).astype(dtype), name="Y")
    return module_of(x, z, y)


def copy(rows: Extent, columns: Extent, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build Y = X."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    return module_of(x, te.compute(x.shape, lambda i, j: x[i, j], name="Y"))


def scale_shift(rows: Extent, columns: Extent, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build Y = X * A + B, a factor a row and a summand a column, in float32."""
    x, a, b = _tensors("XAB", [(rows, columns), (rows,), (columns,)], dtype)
    y = te.compute(x.shape, lambda i, j: _f(x[i, j]) * _f(a[i]) + _f(b[j]), name="Y")
    return module_of(x, a, b, y)


def sum_and_difference(rows: Extent, columns: Extent, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build P = X + Z and D = X - Z: two outputs of one pass."""
    x, z = _tensors("XZ", [(rows, columns)] * 2, dtype)
    p = te.compute(x.shape, lambda i, j: (_f(x[i, j]) + _f(z[i, j])).astype(dtype), name="P")
    d = te.compute(x.shape, lambda i, j: (_f(x[i, j]) - _f(z[i, j])).astype(dtype), name="D")
    return module_of(x, z, p, d)


ROW_REDUCTIONS = {
    f.__name__: f
    for f in (
        *(rms_norm, add_rms_norm, layer_norm, softmax, log_softmax),
        *(row_max, row_sum, row_mean),
    )
}
POINTWISE = {f.__name__: f for f in (copy, gelu_mul, silu_mul, scale_shift, sum_and_difference)}


def reference(name: str, inputs: list[np.ndarray], dtype: str = "bfloat16") -> list[np.ndarray]:
    """Compute a program, by its function's name, in float64; what it rounds between is rounded."""
    x, *more = (a.astype(np.float64) for a in inputs)
    if name == "add_rms_norm":
        h = _round(x + more[0], dtype)
        return [h, _rms_of(h, more[1])]
    return [_VALUES[name](x, *more)] if name != "sum_and_difference" else [x + more[0], x - more[0]]


def _round(value: np.ndarray, dtype: str) -> np.ndarray:
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return value.astype(np.float32).astype(kind).astype(np.float64)


def _rms_of(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * w


def _layer_norm_of(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * w + b


def _softmax_of(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _gelu_of(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    return x * 0.5 * (np.vectorize(math.erf)(x * math.sqrt(0.5)) + 1) * z


_VALUES: dict[str, Callable[..., np.ndarray]] = {
    "rms_norm": _rms_of,
    "layer_norm": _layer_norm_of,
    "softmax": _softmax_of,
    "log_softmax": lambda x: np.log(_softmax_of(x)),
    "row_max": lambda x: x.max(-1),
    "row_sum": lambda x: x.sum(-1),
    "row_mean": lambda x: x.mean(-1),
    "gelu_mul": _gelu_of,
    "silu_mul": lambda x, z: x / (1 + np.exp(-x)) * z,
    "copy": lambda x: x,
    "scale_shift": lambda x, a, b: x * a[:, None] + b,
}


def _f(value: Any) -> Any:
    return value.astype("float32")


def _const(value: float) -> Any:
    return tvm.tirx.const(value, "float32")


def _sum(rows: Any, columns: int, value: Callable[[Any, Any], Any], name: str) -> Any:
    k = te.reduce_axis((0, columns), name="k")
    return te.compute((rows,), lambda i: te.sum(value(i, k), axis=k), name=name)


def _max(rows: Any, columns: int, value: Callable[[Any, Any], Any], name: str) -> Any:
    k = te.reduce_axis((0, columns), name="k")
    return te.compute((rows,), lambda i: te.max(value(i, k), axis=k), name=name)


def _tensors(names: Sequence[str], shapes: list[tuple[Extent, ...]], dtype: str) -> list[Any]:
    variables: dict[str, Any] = {}

    def extent(x: Extent) -> Any:
        return variables.setdefault(x, te.var(x)) if isinstance(x, str) else x

    return [
        te.placeholder([extent(x) for x in shape], dtype, name=name)
        for name, shape in zip(names, shapes, strict=True)
    ]
