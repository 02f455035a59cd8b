"""Products whose columns meet after them, as programs: gates, rotary embedding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm import te, tirx

from .tiling import module_of

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

    - `m`, `n`, `k`: rows, which may be the name of a symbol, columns of D, and the depth.
    - `count`: parts.
    - `dtype`: of A, W and D; sums are float32.
    - `order`: how columns of the product are distributed: "eights", as `hs.matmul` takes them,
      "halves" or "pairs".
    - `index`: type of the extents.
    - returns: `main(A, W, D)`, with W of (count, n // 8, 8, k).
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
    return module_of(a, w, d)


def products_of_one_operand(
    m: int | str,
    n: int,
    k: int,
    count: int = 2,
    dtype: str = "float16",
    index: str = "int64",
    value: Callable[..., Any] | None = None,
) -> tvm.IRModule:
    """Return D = silu(C0) * C1 * ..., where each Ci = A Wi^T has weights of its own.

    - `m`, `n`, `k`: rows, which may be the name of a symbol, columns of D, and the depth.
    - `count`: products.
    - `dtype`: of A, all Wi and D; sums are float32.
    - `index`: type of the extents.
    - `value` (callable): what an element of D is computed as from those of the products, before the
      cast.
    - returns: `main(A, W0, W1, ..., D)`, with blocks C0, C1 and so on.
    """
    rows: Any = tirx.Var(m, index) if isinstance(m, str) else tirx.IntImm(index, m)
    width, depth = tirx.IntImm(index, n), tirx.IntImm(index, k)
    a = te.placeholder((rows, depth), dtype, "A")
    weights = [te.placeholder((width, depth), dtype, f"W{x}") for x in range(count)]

    def product(number: int) -> Any:
        axis, w = te.reduce_axis((0, depth), "k"), weights[number]

        def term(i: Any, j: Any) -> Any:
            return te.sum(a[i, axis].astype("float32") * w[j, axis].astype("float32"), [axis])

        return te.compute((rows, width), term, f"C{number}")

    sums = [product(x) for x in range(count)]

    def gated(i: Any, j: Any) -> Any:
        gate, *others = (x[i, j] for x in sums)
        made = value(gate, *others) if value else gate * te.sigmoid(gate) * math.prod(others)
        return made.astype(dtype)

    d = te.compute((rows, width), gated, "D")
    return module_of(a, *weights, d)


def rotated_product(
    m: int | str,
    n: int,
    k: int,
    width: int,
    *,
    dtype: str = "float16",
    pairs: bool = False,
    columns: int | None = None,
    tables: int | None = None,
) -> tvm.IRModule:
    """Return rotary embedding of a product's heads: D = C * cos + rotated(C) * sin, C = A W^T.

    - `m`, `n`, `k`: rows, which may be the name of a symbol, columns and the depth.
    - `width`: columns of a head.
    - `dtype`: of A, W and D; sums, cos and sin are float32.
    - `pairs`: whether the columns 2 j and 2 j + 1 are rotated together, else j and j + width / 2.
    - `columns`: how many columns are rotated; the others are stored as they are. None: all.
    - `tables`: rows of the tables, of which a position of each row says its own. None: m rows.
    - returns: `main(A, W, cos, sin, D)`, or `main(A, W, cos, sin, position, D)`.
    """
    count: Any = tirx.Var(m, "int64") if isinstance(m, str) else m
    a, w = te.placeholder((count, k), dtype, "A"), te.placeholder((n, k), dtype, "W")
    cos, sin = (te.placeholder((tables or count, width), "float32", x) for x in ("cos", "sin"))
    position = te.placeholder((count,), "int32", "position")
    axis, half = te.reduce_axis((0, k), "k"), width // 2

    def product(i: Any, j: Any) -> Any:
        return te.sum(a[i, axis].astype("float32") * w[j, axis].astype("float32"), [axis])

    c = te.compute((count, n), product, "C")

    def rotated(i: Any, j: Any) -> Any:
        if pairs:
            other = tirx.if_then_else(j % 2 == 0, -c[i, j + 1], c[i, j - 1])
        else:
            other = tirx.if_then_else(j % width < half, -c[i, j + half], c[i, j - half])
        at = i if tables is None else position[i]
        value = c[i, j] * cos[at, j % width] + other * sin[at, j % width]
        kept = value if columns is None else tirx.if_then_else(j < columns, value, c[i, j])
        return kept.astype(dtype)

    d = te.compute((count, n), rotated, "D")
    given = [a, w, cos, sin, *([] if tables is None else [position]), d]
    return module_of(*given)
