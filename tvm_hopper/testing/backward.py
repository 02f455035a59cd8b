"""Gradients of norms, softmax and cross-entropy, as te writes them, for tests, docs, benchmarks.

mod = backward.rms_norm_backward(128, 4096)          # dX by row, dW by column
hs.row_reduction(sch := s_tir.Schedule(mod))

The norms take what a forward pass keeps: `R`, 1 / sqrt(mean(X^2) + e) or that of the variance, and
`M`, the mean, both in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from .columns import reduce_columns
from .losses import IGNORED
from .memory_bound import EPSILON, Extent, _const, _f, _max, _sum, _tensors
from .tiling import module_of


def rms_norm_backward(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build dX and dW of Y = X * R * W."""
    x, dy, w = _tensors(["X", "DY", "W"], [(rows, columns)] * 2 + [(columns,)], dtype)
    r = te.placeholder(x.shape[:1], "float32", name="R")
    c = _sum(x.shape[0], columns, lambda i, k: _f(dy[i, k]) * _f(w[k]) * _f(x[i, k]), "C")

    def value(i: Any, j: Any) -> Any:
        inner = c[i] * r[i] * r[i] * _const(1 / columns)
        return (r[i] * (_f(dy[i, j]) * _f(w[j]) - _f(x[i, j]) * inner)).astype(dtype)

    dx = te.compute(x.shape, value, name="DX")
    s = reduce_columns(x, te.sum, lambda k, j: _f(dy[k, j]) * (_f(x[k, j]) * r[k]), "SW")
    dw = te.compute(s.shape, lambda j: s[j].astype(dtype), name="DW")
    return module_of(x, dy, w, r, dx, dw)


def layer_norm_backward(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build dX, dW and dB of Y = (X - M) * R * W + B."""
    x, dy, w = _tensors(["X", "DY", "W"], [(rows, columns)] * 2 + [(columns,)], dtype)
    m = te.placeholder(x.shape[:1], "float32", name="M")
    r = te.placeholder(x.shape[:1], "float32", name="R")

    def normal(i: Any, j: Any) -> Any:
        return (_f(x[i, j]) - m[i]) * r[i]

    k = te.reduce_axis((0, columns), name="k")
    both = te.comm_reducer(  # two sums that are known at the same time: one barrier
        lambda a, b: (a[0] + b[0], a[1] + b[1]), lambda p, q: (tirx.const(0, p),) * 2, "both"
    )

    def terms(i: Any) -> tuple[Any, Any]:
        inner = _f(dy[i, k]) * _f(w[k])
        return inner, inner * normal(i, k)

    g, h = te.compute(x.shape[:1], lambda i: both(terms(i), axis=k), name="G")

    def value(i: Any, j: Any) -> Any:
        inner = g[i] * _const(1 / columns) + normal(i, j) * (h[i] * _const(1 / columns))
        return (r[i] * (_f(dy[i, j]) * _f(w[j]) - inner)).astype(dtype)

    dx = te.compute(x.shape, value, name="DX")
    s = reduce_columns(x, te.sum, lambda k, j: _f(dy[k, j]) * normal(k, j), "SW")
    b = reduce_columns(x, te.sum, lambda k, j: _f(dy[k, j]), "SB")
    dw = te.compute(s.shape, lambda j: s[j].astype(dtype), name="DW")
    db = te.compute(s.shape, lambda j: b[j].astype(dtype), name="DB")
    return module_of(x, dy, w, m, r, dx, dw, db)


def softmax_backward(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build dX of Y = softmax(X), from Y."""
    y, dy = _tensors(["Y", "DY"], [(rows, columns)] * 2, dtype)
    d = _sum(y.shape[0], columns, lambda i, k: _f(y[i, k]) * _f(dy[i, k]), "D")

    def value(i: Any, j: Any) -> Any:
        return (_f(y[i, j]) * (_f(dy[i, j]) - d[i])).astype(dtype)

    return module_of(y, dy, te.compute(y.shape, value, name="DX"))


def cross_entropy_backward(
    rows: Extent, columns: int, dtype: str = "bfloat16", labels: str = "int64"
) -> tvm.IRModule:
    """Build dX of a loss a row, whose gradient is DL: 0 where a label is to be ignored."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    label = te.placeholder(x.shape[:1], labels, name="labels")
    dl = te.placeholder(x.shape[:1], "float32", name="DL")
    m = _max(x.shape[0], columns, lambda i, k: _f(x[i, k]), "M")
    e = te.compute(x.shape, lambda i, j: te.exp(_f(x[i, j]) - m[i]), name="E")
    s = _sum(x.shape[0], columns, lambda i, k: e[i, k], "S")
    ignored = tirx.const(IGNORED, labels)
    zero = _const(0)
    f = te.compute(m.shape, lambda i: tirx.Select(label[i] == ignored, zero, dl[i]), name="F")

    def value(i: Any, j: Any) -> Any:
        hit = tirx.Select(label[i] == j.astype(labels), _const(1), zero)
        return ((e[i, j] / s[i] - hit) * f[i]).astype(dtype)

    return module_of(x, label, dl, te.compute(x.shape, value, name="DX"))


BACKWARD = {
    f.__name__: f
    for f in (rms_norm_backward, layer_norm_backward, softmax_backward, cross_entropy_backward)
}


def inputs(name: str, rows: int, columns: int, seed: int = 0) -> list[np.ndarray]:
    """Draw the inputs of a program, in float64: what a forward pass keeps fits the rest."""
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((2, rows, columns))
    w = rng.standard_normal(columns)
    if name == "softmax_backward":
        e = np.exp(x)
        return [e / e.sum(-1, keepdims=True), dy]
    if name == "cross_entropy_backward":
        label = rng.integers(0, columns, rows)
        label[::3] = IGNORED
        return [x, label, rng.standard_normal(rows)]
    if name == "rms_norm_backward":
        return [x, dy, w, 1 / np.sqrt((x * x).mean(-1) + EPSILON)]
    return [x, dy, w, x.mean(-1), 1 / np.sqrt(x.var(-1) + EPSILON)]


def reference(name: str, given: list[np.ndarray]) -> list[np.ndarray]:
    """Compute a program, by its function's name, in float64."""
    x, dy, *more = given
    if name == "softmax_backward":
        return [x * (dy - (x * dy).sum(-1, keepdims=True))]
    if name == "cross_entropy_backward":
        e = np.exp(x - x.max(-1, keepdims=True))
        hit = np.arange(x.shape[1]) == dy[:, None]
        scale = np.where(dy == IGNORED, 0, more[0])[:, None]
        return [(e / e.sum(-1, keepdims=True) - hit) * scale]
    w, r = more[0], more[-1][:, None]
    if name == "rms_norm_backward":
        c = (dy * w * x).mean(-1, keepdims=True)
        return [r * (dy * w - x * r * r * c), (dy * x * r).sum(0)]
    n = (x - more[1][:, None]) * r
    g = dy * w
    dx = r * (g - g.mean(-1, keepdims=True) - n * (g * n).mean(-1, keepdims=True))
    return [dx, (dy * n).sum(0), dy.sum(0)]
