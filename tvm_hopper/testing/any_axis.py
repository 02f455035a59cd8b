"""Reductions over any neighbouring dimensions, as te writes them, for tests and benchmarks.

mod = any_axis.softmax((8, 1000, 64), (1,), "float16")          over the middle dimension
hs.column_reduction(sch := s_tir.Schedule(mod))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import te

from .memory_bound import _f, _tensors
from .tiling import module_of

Axes = Sequence[int]


def softmax(shape: Sequence[int], axes: Axes, dtype: str = "float16") -> tvm.IRModule:
    """Build the softmax over some dimensions."""
    (x,) = _tensors("X", [tuple(shape)], dtype)
    most, at = _reduced(x, axes, te.max, lambda *i: _f(x(*i)), "M")
    e = te.compute(x.shape, lambda *i: te.exp(_f(x(*i)) - most(*at(i))), name="E")
    total, _ = _reduced(x, axes, te.sum, e, "S")
    value = te.compute(x.shape, lambda *i: (e(*i) / total(*at(i))).astype(dtype), name="Y")
    return module_of(x, value)


def log_softmax(shape: Sequence[int], axes: Axes, dtype: str = "float16") -> tvm.IRModule:
    """Build the logarithm of the softmax over some dimensions."""
    (x,) = _tensors("X", [tuple(shape)], dtype)
    most, at = _reduced(x, axes, te.max, lambda *i: _f(x(*i)), "M")
    total, _ = _reduced(x, axes, te.sum, lambda *i: te.exp(_f(x(*i)) - most(*at(i))), "S")

    def value(*i: Any) -> Any:
        return (_f(x(*i)) - most(*at(i)) - te.log(total(*at(i)))).astype(dtype)

    return module_of(x, te.compute(x.shape, value, name="Y"))


def layer_norm(shape: Sequence[int], axes: Axes, dtype: str = "float16") -> tvm.IRModule:
    """Build a layer norm over one dimension, as over channels, with weights; and its mean."""
    n = shape[axes[0]]
    x, w, b = _tensors(["X", "W", "B"], [tuple(shape), (n,), (n,)], dtype)
    total, at = _reduced(x, axes, te.sum, lambda *i: _f(x(*i)), "S")
    mean = te.compute(total.shape, lambda *i: total(*i) / float(n), name="mean")

    def square(*i: Any) -> Any:
        apart = _f(x(*i)) - mean(*at(i))
        return apart * apart

    squares, _ = _reduced(x, axes, te.sum, square, "V")

    def value(*i: Any) -> Any:
        scale = te.rsqrt(squares(*at(i)) / float(n) + 1e-5)
        k = i[axes[0]]
        return ((_f(x(*i)) - mean(*at(i))) * scale * _f(w[k]) + _f(b[k])).astype(dtype)

    return module_of(x, w, b, te.compute(x.shape, value, name="Y"), mean)


def greatest(shape: Sequence[int], axes: Axes, dtype: str = "float16") -> tvm.IRModule:
    """Build the greatest element over some dimensions."""
    (x,) = _tensors("X", [tuple(shape)], dtype)
    most, _ = _reduced(x, axes, te.max, lambda *i: _f(x(*i)), "M")
    return module_of(x, te.compute(most.shape, lambda *i: most(*i).astype(dtype), name="Y"))


def sum_and_scaled(shape: Sequence[int], axes: Axes, dtype: str = "float16") -> tvm.IRModule:
    """Build X + R, and its sum over some dimensions with a column's bias and its square."""
    kept = tuple(n for i, n in enumerate(shape) if i not in axes)
    x, r, c = _tensors(["X", "R", "C"], [tuple(shape), tuple(shape), kept], dtype)
    total, at = _reduced(x, axes, te.sum, lambda *i: _f(x(*i)) * _f(r(*i)), "S")
    squares, _ = _reduced(x, axes, te.sum, lambda *i: _f(x(*i)) * _f(x(*i)), "Q")
    column = te.compute(kept, lambda *i: total(*i) + _f(c(*i)), name="T")

    def value(*i: Any) -> Any:
        return (_f(x(*i)) * column(*at(i)) + _f(r(*i)) + squares(*at(i))).astype(dtype)

    return module_of(x, r, c, column, te.compute(x.shape, value, name="Y"))


ANY_AXIS = {f.__name__: f for f in (softmax, log_softmax, layer_norm, greatest, sum_and_scaled)}


def inputs(
    name: str, shape: Sequence[int], axes: Axes, rng: np.random.Generator
) -> list[np.ndarray]:
    """Draw inputs of a program, by its function's name."""
    n, kept = shape[axes[0]], [x for i, x in enumerate(shape) if i not in axes]
    shapes = {"layer_norm": [shape, (n,), (n,)], "sum_and_scaled": [shape, shape, kept]}
    return [rng.standard_normal(tuple(x)) for x in shapes.get(name, [shape])]


def reference(name: str, inputs: Sequence[np.ndarray], axes: Axes) -> list[np.ndarray]:
    """Compute a program, by its function's name, in float64."""
    x, *others = (i.astype(np.float64) for i in inputs)
    over = tuple(axes)
    mean, most = x.mean(over, keepdims=True), x.max(over, keepdims=True)
    total = np.exp(x - most).sum(over, keepdims=True)
    if name == "softmax":
        return [np.exp(x - most) / total]
    if name == "log_softmax":
        return [x - most - np.log(total)]
    if name == "greatest":
        return [x.max(over)]
    if name == "layer_norm":
        w, b = (y.reshape([-1] + [1] * (x.ndim - over[0] - 1)) for y in others)
        scale = 1 / np.sqrt(((x - mean) ** 2).mean(over, keepdims=True) + 1e-5)
        return [(x - mean) * scale * w + b, mean.squeeze(over)]
    r, c = others
    column = (x * r).sum(over) + c
    squares = (x * x).sum(over, keepdims=True)
    return [column, x * np.expand_dims(column, over) + r + squares]


def _reduced(
    x: Any, axes: Axes, reduce: Callable[..., Any], value: Callable[..., Any], name: str
) -> tuple[Any, Callable[[Any], list[Any]]]:
    """Reduce a value of each element; return that, and what takes indices to the result's."""
    over = {i: te.reduce_axis((0, x.shape[i]), name=f"k{i}") for i in axes}
    kept = [n for i, n in enumerate(x.shape) if i not in over]
    assert prod(int(n) for n in kept), "there are no columns"

    def element(*i: Any) -> Any:
        left = iter(i)
        return value(*(over[n] if n in over else next(left) for n in range(len(x.shape))))

    result = te.compute(kept, lambda *i: reduce(element(*i), axis=list(over.values())), name=name)
    return result, lambda i: [x for n, x in enumerate(i) if n not in over]
