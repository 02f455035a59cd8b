"""Attention without its products, in te, for tests, docs and benchmarks.

mod = attention.rope(4096, 4096)                    # 4096 tokens, 32 heads of 128 columns
hs.pointwise(sch := s_tir.Schedule(mod))

Norms of each head are `memory_bound.rms_norm` of 128 columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import te

from .memory_bound import Extent, _f, _module, _tensors

HEAD = 128  # columns of a head


def rope(tokens: Extent, columns: int, dtype: str = "bfloat16", head: int = HEAD) -> tvm.IRModule:
    """Build Y: the pairs (d, d + head / 2) of each head, turned by the angle of the token."""
    half = head // 2
    (x,) = _tensors(["X"], [(tokens, columns)], dtype)
    c, s = (te.placeholder((x.shape[0], head), "float32", name=name) for name in ("cosine", "sine"))

    def other(t: Any, j: Any) -> Any:
        return te.if_then_else(j % head < half, -_f(x[t, j + half]), _f(x[t, j - half]))

    def value(t: Any, j: Any) -> Any:
        turned = _f(x[t, j]) * c[t, j % head] + other(t, j) * s[t, j % head]
        return turned.astype(dtype)

    return _module([x, c, s, te.compute(x.shape, value, name="Y")])


def reference(x: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> np.ndarray:
    """Compute it in float64."""
    tokens, head = cosine.shape
    heads = x.astype(np.float64).reshape(tokens, -1, head)
    left, right = np.split(heads, 2, axis=-1)
    other = np.concatenate([-right, left], axis=-1)
    return (heads * cosine[:, None] + other * sine[:, None]).reshape(x.shape)
