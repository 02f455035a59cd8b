"""Products with weights that are stored in 8 bits and converted on their way, as programs."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tirx

from .workloads import Extent, _extent


def converted_weight(
    m: Extent,
    n: int,
    k: int,
    stored: str = "int8",
    dtype: str = "float16",
    values: str = "S",
    is_left: bool = False,
    out_dtype: str | None = None,
) -> tvm.IRModule:
    """Return D[i, j] = sum of X[i, k] F[j, k], where F[j, k] = (dtype(W[j, k]) - Z[j]) * S[j].

    - `m`, `n`, `k`: rows of X, rows of W, and the depth; `m` may be the name of a symbol.
    - `stored`, `dtype`: types of W and Z, and of X, S and F; sums are float32.
    - `values`: which there are of Z and S: "", "Z", "S" or "ZS".
    - `is_left`: D[j, i] in place of D[i, j].
    - `out_dtype`: type of D; None: `dtype`.
    - returns: `main(X, W, Z, S, D)`, without those that there are not.
    """
    rows, columns, depth = (_extent(x, "int64") for x in (m, n, k))
    x = te.placeholder((rows, depth), dtype, "X")
    w = te.placeholder((columns, depth), stored, "W")
    z = te.placeholder((columns,), stored, "Z")
    s = te.placeholder((columns,), dtype, "S")
    axis = te.reduce_axis((0, depth), "k")

    def convert(j: Any, r: Any) -> Any:
        value = w[j, r].astype(dtype)
        return value - z[j].astype(dtype) if "Z" in values else value

    f = te.compute((columns, depth), convert, "F")
    if "S" in values:
        plain = f
        f = te.compute((columns, depth), lambda j, r: plain[j, r] * s[j], "scaled")

    def term(i: Any, j: Any) -> Any:
        left, right = (y.astype("float32") for y in (x[i, axis], f[j, axis]))
        return te.sum(right * left if is_left else left * right, [axis])

    shape = (columns, rows) if is_left else (rows, columns)
    c = te.compute(shape, lambda *at: term(*(at[::-1] if is_left else at)), "C")
    d = te.compute(shape, lambda *at: c(*at).astype(out_dtype or dtype), "D")
    more = [tensor for tensor in (z, s) if tensor.name in values]
    func: tirx.PrimFunc = te.create_prim_func([x, w, *more, d], index_dtype_override="int64")
    return tvm.IRModule({"main": func})
