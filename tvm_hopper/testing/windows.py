"""Pooling and depthwise convolutions, as functions in plain loops, with numpy references.

Tests and benchmarks use them; the inputs are normal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import te, tirx, topi

SIDE = 3  # of a convolution's window


def depthwise(
    shape: tuple[int, int, int, int], layout: str = "NHWC", dtype: str = "float16"
) -> tvm.IRModule:
    """Return Y = max(conv(X, K) + B, 0), a window of 3 x 3 for each channel, padded by zeros."""
    channel = layout.index("C")
    height, width = layout.index("H"), layout.index("W")
    x = te.placeholder(shape, dtype, "X")
    last = channel == 3  # filters lie as channels do
    k = te.placeholder((SIDE, SIDE, shape[3]) if last else (shape[1], SIDE, SIDE), dtype, "K")
    b = te.placeholder((shape[channel],), dtype, "B")
    around = [int(i in (height, width)) for i in range(4)]
    padded = topi.nn.pad(x, around, around, name="P")
    i, j = (te.reduce_axis((0, SIDE), name) for name in "ij")

    def product(*at: Any) -> Any:
        place = list(at)
        place[height], place[width] = at[height] + i, at[width] + j
        weight = k[i, j, at[channel]] if last else k[at[channel], i, j]
        return te.sum(padded[tuple(place)].astype("float32") * weight.astype("float32"), [i, j])

    s = te.compute(shape, product, name="S")
    zero = tirx.const(0, "float32")
    y = te.compute(
        shape,
        lambda *at: te.max(s[at] + b[at[channel]].astype("float32"), zero).astype(dtype),
        name="Y",
    )
    return tvm.IRModule({"main": te.create_prim_func([x, k, b, y])})


def pool(shape: tuple[int, int, int, int], kind: str = "max", layout: str = "NHWC") -> tvm.IRModule:
    """Return the greatest or the mean of windows of 2 x 2 of float32, which do not overlap."""
    x = te.placeholder(shape, "float32", "X")
    y = topi.nn.pool2d(x, [2, 2], [2, 2], [1, 1], [0, 0, 0, 0], kind, False, layout)
    return tvm.IRModule({"main": te.create_prim_func([x, y])})


def depthwise_reference(inputs: list[np.ndarray], layout: str = "NHWC") -> np.ndarray:
    """Compute `depthwise` in float64."""
    x, k, b = (a.astype(np.float64) for a in inputs)
    if layout == "NCHW":
        x, k = x.transpose(0, 2, 3, 1), k.transpose(1, 2, 0)
    _, height, width, _ = x.shape
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    found = sum(
        padded[:, i : i + height, j : j + width] * k[i, j] for i in range(SIDE) for j in range(SIDE)
    )
    found = np.maximum(found + b, 0)
    return found.transpose(0, 3, 1, 2) if layout == "NCHW" else found
