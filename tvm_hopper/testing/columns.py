"""Reductions of columns, as te writes them, for tests, docs and benchmarks.

mod = columns.column_sum(4096, 1024)                # a bias gradient: Y[j] = sum of X[:, j]
hs.column_reduction(sch := s_tir.Schedule(mod))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import te

from .losses import first_greatest
from .memory_bound import Extent, _f, _tensors
from .tiling import module_of


def column_sum(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build the sum of each column, in float32, rounded once: the gradient of a bias."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    s = reduce_columns(x, te.sum, lambda k, j: _f(x[k, j]), "S")
    return module_of(x, te.compute(s.shape, lambda j: s[j].astype(dtype), name="Y"))


def column_max(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build the greatest element of each column, in float32."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    return module_of(x, reduce_columns(x, te.max, lambda k, j: _f(x[k, j]), "Y"))


def batch_moments(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build the mean of each column, and of its squares, in float32: one pass over X."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    s = reduce_columns(x, te.sum, lambda k, j: _f(x[k, j]), "S")
    q = reduce_columns(x, te.sum, lambda k, j: _f(x[k, j]) * _f(x[k, j]), "Q")
    count = x.shape[0].astype("float32") if isinstance(rows, str) else float(rows)
    mean = te.compute(s.shape, lambda j: s[j] / count, name="mean")
    squares = te.compute(s.shape, lambda j: q[j] / count, name="squares")
    return module_of(x, mean, squares)


def column_argmax(rows: Extent, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build the row of the greatest element of each column, the first of several, and it."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    k = te.reduce_axis((0, x.shape[0]), name="k")
    best = first_greatest()
    place, most = te.compute((columns,), lambda j: best((k, _f(x[k, j])), axis=k), name="Y")
    return module_of(x, place, most)


def weighted_sum(batch: Extent, rows: int, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build the sum of X * DY over all dimensions but the last, times A: of three dimensions."""
    x, dy, a = _tensors(
        ["X", "DY", "A"], [(batch, rows, columns), (batch, rows, columns), (columns,)], dtype
    )
    b = te.reduce_axis((0, x.shape[0]), name="b")
    k = te.reduce_axis((0, rows), name="k")
    s = te.compute(
        (columns,), lambda j: te.sum(_f(x[b, k, j]) * _f(dy[b, k, j]), axis=[b, k]), name="S"
    )
    return module_of(x, dy, a, te.compute(s.shape, lambda j: s[j] * _f(a[j]), name="Y"))


def mean(rows: int, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    """Build the mean of all elements, in float32."""
    (x,) = _tensors("X", [(rows, columns)], dtype)
    k, m = te.reduce_axis((0, rows), name="k"), te.reduce_axis((0, columns), name="m")
    s = te.compute((1,), lambda i: te.sum(_f(x[k, m]), axis=[k, m]), name="S")
    return module_of(x, te.compute((1,), lambda i: s[i] / float(rows * columns), name="Y"))


COLUMNS = {f.__name__: f for f in (column_sum, column_max, batch_moments, column_argmax)}


def reference(name: str, x: np.ndarray) -> list[np.ndarray]:
    """Compute a program of two dimensions, by its function's name, in float64."""
    x = x.astype(np.float64)
    return {
        "column_sum": lambda: [x.sum(0)],
        "column_max": lambda: [x.max(0)],
        "batch_moments": lambda: [x.mean(0), (x * x).mean(0)],
        "column_argmax": lambda: [x.argmax(0), x.max(0)],
    }[name]()


def reduce_columns(x: Any, reduce: Callable[..., Any], value: Callable[..., Any], name: str) -> Any:
    """Reduce what is computed of each element of a column."""
    k = te.reduce_axis((0, x.shape[0]), name="k")
    return te.compute((x.shape[1],), lambda j: reduce(value(k, j), axis=k), name=name)
