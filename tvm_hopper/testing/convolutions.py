"""Convolutions of images of any number of axes, channels last, as te writes them.

convolution((2, 14, 14), 64, 32, (3, 3), pads=1)          X[2, 14, 14, 64], W[3, 3, 64, 32]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te, tirx, topi

from .workloads import Extent, _extent


def convolution(
    images: Sequence[Extent],
    channels: int,
    filters: int,
    window: Sequence[int],
    *,
    dtype: str = "float16",
    weights: str = "channels first",
    fused: bool = False,
    **geometry: int,
) -> tvm.IRModule:
    """Build a convolution in plain loops, as a module with the function "main".

    - `images`: how many there are, and their extents; a name makes one symbolic.
    - `channels`, `filters`: of the input and of the output.
    - `window`: of each axis.
    - `dtype`: of X and W; sums are float32.
    - `weights`: "channels first": W[*window, channels, filters]; "filters first": W[filters,
      *window, channels].
    - `fused`: whether D = max(C + bias, 0) + residual in 16 bits follows, both of float32: a value
      for each filter, and one for each element.
    - `geometry`: `steps`, `pads` and `dilation`, of each axis, on both sides.
    - returns: arguments of "main": X, W, those of what follows, the output.
    """
    steps, pads = geometry.get("steps", 1), geometry.get("pads", 0)
    dilation = geometry.get("dilation", 1)
    count, *extents = (_extent(x, "int32") for x in images)
    x = te.placeholder((count, *extents, channels), dtype, name="X")
    last = (channels, filters)
    shape = (*window, *last) if weights == "channels first" else (filters, *window, channels)
    w = te.placeholder(shape, dtype, name="W")
    around = [0, *[pads] * len(window), 0]
    padded = topi.nn.pad(x, around, around, name="P") if pads else x
    axes = [te.reduce_axis((0, size), f"r{i}") for i, size in enumerate(window)]
    channel = te.reduce_axis((0, channels), "c")
    out = [
        (extent + 2 * pads - dilation * (size - 1) - 1) // steps + 1
        for extent, size in zip(extents, window, strict=True)
    ]

    def product(n: Any, *at: Any) -> Any:
        *places, o = at
        moved = [p * steps + r * dilation for p, r in zip(places, axes, strict=True)]
        at_weight = (*axes, channel, o) if weights == "channels first" else (o, *axes, channel)
        cast = [v.astype("float32") for v in (padded(n, *moved, channel), w(*at_weight))]
        return te.sum(cast[0] * cast[1], axis=[*axes, channel])

    shape = (count, *out, filters)
    value = te.compute(shape, product, name="C")
    more = []
    if fused:
        bias = te.placeholder((filters,), "float32", name="bias")
        residual = te.placeholder(shape, "float32", name="residual")
        total, zero, more = value, tirx.const(0, "float32"), [bias, residual]

        def follow(*i: Any) -> Any:
            return (te.max(total(*i) + bias(i[-1]), zero) + residual(*i)).astype("float16")

        value = te.compute(shape, follow, name="D")
    func = te.create_prim_func([x, w, *more, value], index_dtype_override=None)
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
