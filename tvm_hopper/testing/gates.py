"""Products of which each output takes several columns, as programs: gates and what they gate."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tirx

ORDERS = ("eights", "halves", "pairs")


def gated_product(
    m: int | str,
    n: int,
    k: int,
    count: int = 2,
    dtype: str = "float16",
    order: str = "eights",
    index: str = "int64",
) -> tvm.IRModule:
    """Return D = silu(C_0) * C_1 * ..., where C_i = A W_i^T are parts of one product's columns.

    Parameters
    ----------
    m, n, k : int
        Rows, which may be the name of a symbol, columns of D, and the depth.
    count : int
        Parts.
    dtype : str
        Of A, W and D; sums are float32.
    order : str
        How columns of the product are distributed: "eights", as `hs.matmul` takes them, "halves" or
        "pairs".
    index : str
        Type of the extents.

    Returns
    -------
    mod : IRModule
        `main(A, W, D)`, with W of (count, n // 8, 8, k).
    """
    if order not in ORDERS:
        raise ValueError(f"order {order!r}: need one of {', '.join(ORDERS)}")
    rows: Any = tirx.Var(m, index) if isinstance(m, str) else tirx.IntImm(index, m)
    width, depth = tirx.IntImm(index, n), tirx.IntImm(index, k)
    a = te.placeholder((rows, depth), dtype, "A")
    w = te.placeholder(
        (tirx.IntImm(index, count), width // 8, tirx.IntImm(index, 8), depth), dtype, "W"
    )
    axis = te.reduce_axis((0, depth), "k")

    def column(j: Any, part: int) -> Any:
        if order == "halves":
            return j + part * width
        return j * count + part if order == "pairs" else j // 8 * (8 * count) + j % 8 + part * 8

    def weight(j: Any) -> list[Any]:
        if order == "halves":
            part, at = j // width, j % width
        elif order == "pairs":
            part, at = j % count, j // count
        else:
            return [j % (8 * count) // 8, j // (8 * count), j % 8]
        return [part, at // 8, at % 8]

    def product(i: Any, j: Any) -> Any:
        left = a[i, axis].astype("float32")
        return te.sum(left * w(*weight(j), axis).astype("float32"), [axis])

    c = te.compute((rows, width * count), product, "C")

    def gated(i: Any, j: Any) -> Any:
        parts = [c[i, column(j, x)] for x in range(count)]
        value = parts[0] * te.sigmoid(parts[0])
        for x in parts[1:]:
            value = value * x
        return value.astype(dtype)

    d = te.compute((rows, width), gated, "D")
    return tvm.IRModule({"main": te.create_prim_func([a, w, d]).with_attr("global_symbol", "main")})
