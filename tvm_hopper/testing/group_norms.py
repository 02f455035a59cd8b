"""Norms over several dimensions, as te writes them, for tests, docs and benchmarks.

mod = group_norms.group_norm(2, 32, 10, 64, 64)    # 2 images of 320 channels in 32 groups
hs.row_reduction(sch := s_tir.Schedule(mod))

With one channel a group it is an instance norm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import te

from .memory_bound import EPSILON, Extent, _const, _f, _tensors
from .tiling import module_of


def group_norm(
    batch: Extent, groups: int, channels: int, height: int, width: int, dtype: str = "bfloat16"
) -> tvm.IRModule:
    """Build the norm of groups of so many channels: mean, variance about it, scale and shift."""
    every = groups * channels
    shape = (batch, every, height, width)
    x, w, b = _tensors("XWB", [shape, (every,), (every,)], dtype)
    size = _const(channels * height * width)

    def summed(value: Any, name: str) -> Any:
        sizes = {"k": channels, "m": height, "n": width}
        axes = [te.reduce_axis((0, extent), name=f"{name}_{k}") for k, extent in sizes.items()]
        k, m, n = axes

        def total(i: Any, g: Any) -> Any:
            return te.sum(value(i, g, _f(x[i, g * channels + k, m, n])), axis=axes)

        return te.compute((x.shape[0], groups), total, name=name)

    s = summed(lambda i, g, v: v, "S")
    mean = te.compute(s.shape, lambda i, g: s[i, g] / size, name="mean")
    v = summed(lambda i, g, v: (v - mean[i, g]) * (v - mean[i, g]), "V")

    def value(i: Any, c: Any, m: Any, n: Any) -> Any:
        g = c // channels
        scale = te.rsqrt(v[i, g] / size + _const(EPSILON))
        return ((_f(x[i, c, m, n]) - mean[i, g]) * scale * _f(w[c]) + _f(b[c])).astype(dtype)

    return module_of(x, w, b, te.compute(x.shape, value, name="Y"))


def spatial_mean(batch: Extent, channels: int, height: int, width: int) -> tvm.IRModule:
    """Build the mean over the last two dimensions, in float32: a global average pool."""
    (x,) = _tensors(["X"], [(batch, channels, height, width)], "float32")
    axes = [te.reduce_axis((0, extent), name=k) for k, extent in (("k", height), ("m", width))]
    s = te.compute(x.shape[:2], lambda i, c: te.sum(x[i, c, axes[0], axes[1]], axis=axes), name="S")
    y = te.compute(s.shape, lambda i, c: s[i, c] / _const(height * width), name="Y")
    return module_of(x, y)


def reference(x: np.ndarray, w: np.ndarray, b: np.ndarray, groups: int) -> np.ndarray:
    """Compute the group norm in float64."""
    rows = x.astype(np.float64).reshape(x.shape[0], groups, -1)
    rows = rows - rows.mean(-1, keepdims=True)
    rows /= np.sqrt((rows**2).mean(-1, keepdims=True) + EPSILON)
    scale, shift = (v.astype(np.float64)[:, None, None] for v in (w, b))
    return rows.reshape(x.shape) * scale + shift
