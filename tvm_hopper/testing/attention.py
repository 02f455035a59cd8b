"""Attention and what is around it, in te, for tests, docs and benchmarks.

mod = attention.rope(4096, 4096)                    # 4096 tokens, 32 heads of 128 columns
hs.pointwise(sch := s_tir.Schedule(mod))

Norms of each head are `memory_bound.rms_norm` of 128 columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import te, topi

from .memory_bound import Extent, _f, _tensors
from .tiling import module_of

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

    return module_of(x, c, s, te.compute(x.shape, value, name="Y"))


def reference(x: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> np.ndarray:
    """Compute it in float64."""
    tokens, head = cosine.shape
    heads = x.astype(np.float64).reshape(tokens, -1, head)
    left, right = np.split(heads, 2, axis=-1)
    other = np.concatenate([-right, left], axis=-1)
    return (heads * cosine[:, None] + other * sine[:, None]).reshape(x.shape)


def softmax_attention(
    heads: tuple[int, int, int],
    lengths: tuple[int, int],
    columns: tuple[int, int],
    dtype: str = "bfloat16",
    causal: bool = False,
    window: int = 0,
) -> tvm.IRModule:
    """Build O = softmax(Q K^T / sqrt(d) + mask) V for each head.

    - `heads`: batch, heads of queries, heads of keys and values, which divide those of queries.
    - `lengths`: rows of queries, and keys.
    - `columns`: columns of queries and keys, and of values.
    - `causal`: whether a query sees no key after its own; the last query has the last key.
    - `window`: keys that a query sees, with its own; 0: all.
    """
    (batch, many, few), (rows, keys), (depth, width) = heads, lengths, columns
    shapes = [(batch, many, rows, depth), (batch, few, keys, depth), (batch, few, keys, width)]
    q, k, v = _tensors(["Q", "K", "V"], shapes, dtype)
    group, scores = many // few, (batch, many, rows, keys)
    d, j = te.reduce_axis((0, depth), "d"), te.reduce_axis((0, keys), "j")

    def score(b: Any, h: Any, i: Any, j: Any) -> Any:
        return te.sum(_f(q[b, h, i, d]) * _f(k[b, h // group, j, d]), axis=d)

    product = te.compute(scores, score, name="S")

    def masked(b: Any, h: Any, i: Any, j: Any) -> Any:
        value, last = product[b, h, i, j] * float(depth**-0.5), i + (keys - rows)
        nothing = te.min_value("float32")
        value = te.if_then_else(j <= last, value, nothing) if causal else value
        return te.if_then_else(last - window < j, value, nothing) if window else value

    softmax = topi.nn.softmax(te.compute(scores, masked, name="masked"), axis=-1)
    weights = te.compute(scores, lambda *i: softmax(*i).astype(dtype), name="weights")

    def weighted(b: Any, h: Any, i: Any, c: Any) -> Any:
        return te.sum(_f(weights[b, h, i, j]) * _f(v[b, h // group, j, c]), axis=j)

    total = te.compute((batch, many, rows, width), weighted, name="total")
    return module_of(q, k, v, te.compute(total.shape, lambda *i: total(*i).astype(dtype), name="O"))
