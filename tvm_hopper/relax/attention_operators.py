"""Write attention operators as plain loops that `hs.online` recognises.

    o = R.nn.attention(q, k, v, scale=None, causal_mask="BottomRight", window_size=512)
  ->
    o = R.call_tir(attention, (q, k, v))                sums in float32, weights in the type of v

TVM's legalizer sums in the operands' type, knows no window, masks with 0 and wants as many heads of
keys as of queries, which importers repeat in memory.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import te, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_configure

SUM = "float32"
CAUSAL = ("TopLeft", "BottomRight")


def attention_loops(attrs: Any, *tensors: Any) -> Any:
    """Return the result of an operator as a tensor of te.

    - `attrs` (Attrs): of the operator: scale, causal_mask, window_size.
    - `tensors` (Tensor): queries, keys and values of [batch, length, heads, width], and a bias if
      there is one. Each head of keys serves as many heads of queries.
    """
    q, k, v, *bias = tensors
    batch, rows, heads, width = q.shape
    keys, shared = k.shape[1], tirx.floordiv(heads, k.shape[2])
    whole = (batch, heads, rows, keys)
    if ir.static_int(width) is None:
        raise cannot_configure("attention", f"heads of {width} columns", "a number that is known")
    scale = 1 / math.sqrt(int(width)) if attrs.scale is None else float(attrs.scale.value)
    causal = None if attrs.causal_mask is None else str(attrs.causal_mask)
    window = None if attrs.window_size is None else int(attrs.window_size)
    shift: Any = 0  # of the diagonal, as TVM defines the alignments
    if causal == CAUSAL[1]:
        shift = tirx.abs(rows - keys)

    def score(b: Any, h: Any, i: Any, j: Any) -> Any:
        value = products[b, h, i, j] * tirx.const(scale, SUM)
        for x in bias:
            at = [0 if ir.is_const(n, 1) else y for n, y in zip(x.shape, (b, h, i, j), strict=True)]
            value = value + x(*at).astype(SUM)
        masked = tirx.const(-math.inf, SUM)
        if causal is not None:
            value = tirx.Select(j <= i + shift, value, masked)
        if window is not None:
            value = tirx.Select(i + shift - window < j, value, masked)
        return value

    def axis(extent: Any, name: str) -> Any:
        return te.reduce_axis((0, extent), name)

    d, *along = axis(width, "d"), *(axis(keys, f"j{x}") for x in range(3))
    products = te.compute(
        whole,
        lambda b, h, i, j: te.sum(
            q[b, i, h, d].astype(SUM) * k[b, j, tirx.floordiv(h, shared), d].astype(SUM), d
        ),
        "products",
    )
    scores = te.compute(whole, score, "scores")
    top = te.compute(whole[:3], lambda b, h, i: te.max(scores[b, h, i, along[0]], along[0]), "top")
    weights = te.compute(
        whole, lambda b, h, i, j: te.exp(scores[b, h, i, j] - top[b, h, i]), "weights"
    )
    total = te.compute(
        whole[:3], lambda b, h, i: te.sum(weights[b, h, i, along[1]], along[1]), "total"
    )
    rounded = te.compute(
        whole,
        lambda b, h, i, j: (weights[b, h, i, j] / total[b, h, i]).astype(v.dtype),
        "rounded",
    )
    sums = te.compute(
        (batch, heads, rows, v.shape[3]),
        lambda b, h, i, c: te.sum(
            rounded[b, h, i, along[2]].astype(SUM)
            * v[b, along[2], tirx.floordiv(h, shared), c].astype(SUM),
            along[2],
        ),
        "sums",
    )
    return te.compute(
        (batch, rows, heads, v.shape[3]),
        lambda b, i, h, c: sums[b, h, i, c].astype(q.dtype),
        "attention",
    )
