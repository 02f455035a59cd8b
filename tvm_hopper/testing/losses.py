"""Losses and choices of rows, as te writes them, for tests, docs and benchmarks.

mod = losses.cross_entropy(128, 32000)              # L = log(sum(exp(X))) - X[label], by row
hs.row_reduction(sch := s_tir.Schedule(mod))
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import te, tirx, topi

from .memory_bound import Extent, _f, _max, _sum, _tensors
from .tiling import module_of

IGNORED = -100  # the label of rows that do not count


def cross_entropy(
    rows: Extent, columns: int, dtype: str = "bfloat16", labels: str = "int64"
) -> tvm.IRModule:
    """Build the loss of each row: 0 where its label is to be ignored."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    label = te.placeholder(x.shape[:1], labels, name="labels")
    m = _max(x.shape[0], columns, lambda i, k: _f(x[i, k]), "M")
    s = _sum(x.shape[0], columns, lambda i, k: te.exp(_f(x[i, k]) - m[i]), "S")

    def loss(i: Any) -> Any:
        value = te.log(s[i]) + m[i] - _f(x[i, label[i]])
        zero = tirx.const(0, "float32")
        return te.if_then_else(label[i] == tirx.const(IGNORED, labels), zero, value)

    return module_of(x, label, te.compute(m.shape, loss, name="Y"))


def argmax(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build the place of the greatest element of each row, the first of several."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    return module_of(x, topi.argmax(topi.cast(x, "float32"), axis=1))


def top_one(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build the greatest element of each row, in float32, and its place, the first of several."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    k = te.reduce_axis((0, columns), name="k")

    reducer = first_greatest()
    place, most = te.compute(x.shape[:1], lambda i: reducer((k, _f(x[i, k])), axis=k), name="Y")
    return module_of(x, place, most)


def first_greatest() -> Any:
    """Build a reducer of pairs, index and value: the greatest value, and its lowest index."""

    def better(a: Any, b: Any) -> Any:
        first = tirx.any(a[1] > b[1], tirx.all(a[1] == b[1], a[0] < b[0]))
        return tirx.Select(first, a[0], b[0]), tirx.Select(a[1] > b[1], a[1], b[1])

    return te.comm_reducer(better, lambda i, v: (tirx.const(-1, i), te.min_value(v)), "best")


LOSSES = {f.__name__: f for f in (cross_entropy, argmax, top_one)}


def reference(name: str, x: np.ndarray, labels: np.ndarray | None = None) -> list[np.ndarray]:
    """Compute a program, by its function's name, in float64."""
    if name == "argmax":
        return [x.argmax(-1)]
    if name == "top_one":
        return [x.argmax(-1), x.max(-1).astype(np.float64)]
    assert labels is not None
    x = x.astype(np.float64)
    most = x.max(-1)
    safe = np.where(labels == IGNORED, 0, labels)
    loss = np.log(np.exp(x - most[:, None]).sum(-1)) + most - x[np.arange(len(x)), safe]
    return [np.where(labels == IGNORED, 0, loss)]
