"""Matmuls on parts and views of tensors, and other forms that users write: `FORMS` by name.

Each is a function of (m, n, k, dtype) that returns a module whose product is block "C"; operands
have `dtype`, sums are float32.  Extents may be any ints that the layout can take: rows of operands
are a multiple of 8 elements apart when k is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from .tiling import product_of

Form = Callable[[int, int, int, str], tvm.IRModule]


def _module(func: tvm.tirx.PrimFunc) -> tvm.IRModule:
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def _plain(row: Any, column: Any) -> tuple[Any, ...]:
    return row, column


def _product(
    extents: tuple[int, int, int],
    dtype: str,
    shapes: tuple[tuple[int, ...], ...],
    layouts: Sequence[dict[str, Any]] = ({}, {}, {}),
    places: Sequence[Callable[[Any, Any], tuple[Any, ...]]] = (_plain, _plain, _plain),
    adds: bool = False,
) -> tvm.IRModule:
    """Multiply tensors of any layout: `places` index A, B and C by the product's rows and columns.

    `layouts` are arguments of `T.match_buffer`. If the product `adds` to C, it has no first value.
    """
    m, n, k = extents
    a_shape, b_shape, c_shape = shapes
    a_layout, b_layout, c_layout = layouts
    a_at, b_at, c_at = places

    @T.prim_func(s_tir=True)
    def main(a: T.handle, b: T.handle, c: T.handle):
        A = T.match_buffer(a, a_shape, dtype, **a_layout)
        B = T.match_buffer(b, b_shape, dtype, **b_layout)
        C = T.match_buffer(c, c_shape, "float32", **c_layout)
        for i, j, kk in T.grid(m, n, k):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, kk])
                if not adds:
                    with T.init():
                        C[c_at(vi, vj)] = T.float32(0)
                C[c_at(vi, vj)] = C[c_at(vi, vj)] + T.Cast("float32", A[a_at(vi, vk)]) * T.Cast(
                    "float32", B[b_at(vj, vk)]
                )

    return _module(main)


def row_strides(m: int, n: int, k: int, dtype: str) -> tvm.IRModule:
    """Let rows lie further apart than they are long, by constants."""
    layouts = [{"strides": [x, 1]} for x in (k + 8, k + 16, n + 4)]
    return _product((m, n, k), dtype, ((m, k), (n, k), (m, n)), layouts)


def symbolic_strides(m: int, n: int, k: int, dtype: str) -> tvm.IRModule:
    """Let each call say how far apart rows lie."""
    layouts = [{"strides": [tirx.Var(x, "int32"), 1]} for x in ("lda", "ldb", "ldc")]
    return _product((m, n, k), dtype, ((m, k), (n, k), (m, n)), layouts)


def column_strides(m: int, n: int, k: int, dtype: str) -> tvm.IRModule:
    """Declare both operands in the order in which they do not lie in memory."""
    layouts = [{"strides": [1, -(-x // 8) * 8]} for x in (m, n)]
    return _product((m, n, k), dtype, ((m, k), (n, k), (m, n)), [*layouts, {}])


def offsets(m: int, n: int, k: int, dtype: str) -> tvm.IRModule:
    """Let tensors start after their data pointers."""
    start, place = (tirx.Var(x, "int32") for x in ("start", "place"))
    layouts = ({"elem_offset": start, "offset_factor": 8}, {}, {"elem_offset": place})
    return _product((m, n, k), dtype, ((m, k), (n, k), (m, n)), layouts)


def slices(m: int, n: int, k: int, dtype: str) -> tvm.IRModule:
    """Multiply parts of two tensors into a part of a third."""
    width = -(-(k + 12) // 8) * 8
    shapes = ((m + 30, width), (n + 7, width), (m + 16, n + 32))
    places = (
        lambda i, kk: (i + 16, kk + 8),
        lambda j, kk: (j + 7, kk),
        lambda i, j: (i + 5, j + 16),
    )
    return _product((m, n, k), dtype, shapes, places=places)


def packed_qkv(m: int, n: int, k: int, dtype: str) -> tvm.IRModule:
    """Compute scores of one head, whose queries and keys are slices of packed projections."""

    def second(row: Any, kk: Any) -> tuple[Any, ...]:
        return row, 1, kk

    shapes = ((m, 3, k), (n, 2, k), (m, n))
    return _product((m, n, k), dtype, shapes, places=(second, second, _plain))


def unit_dimensions(m: int, n: int, k: int, dtype: str) -> tvm.IRModule:
    """Put dimensions of extent one in the middle and at the end."""

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((m, 1, k, 1), dtype),
        B: T.Buffer((1, n, k), dtype),
        C: T.Buffer((m, 1, n), "float32"),
    ):
        for i, u, j, kk in T.grid(m, 1, n, k):
            with T.sblock("C"):
                vi, vu, vj, vk = T.axis.remap("SSSR", [i, u, j, kk])
                with T.init():
                    C[vi, vu, vj] = T.float32(0)
                C[vi, vu, vj] = C[vi, vu, vj] + T.Cast("float32", A[vi, 0, vk, 0]) * T.Cast(
                    "float32", B[vu, vj, vk]
                )

    return _module(main)


def one_row(m: int, n: int, k: int, dtype: str) -> tvm.IRModule:
    """Simplify a dimension of extent one away."""

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((1, k), dtype), B: T.Buffer((n, k), dtype), C: T.Buffer((1, n), "float32")
    ):
        for j, kk in T.grid(n, k):
            with T.sblock("C"):
                vj, vk = T.axis.remap("SR", [j, kk])
                with T.init():
                    C[0, vj] = T.float32(0)
                C[0, vj] = C[0, vj] + T.Cast("float32", A[0, vk]) * T.Cast("float32", B[vj, vk])

    return _module(main)


def matrix_vector(m: int, n: int, k: int, dtype: str) -> tvm.IRModule:
    """Multiply a matrix and a vector, without any dimension of extent one."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((m, k), dtype), B: T.Buffer((k,), dtype), C: T.Buffer((m,), "float32")):
        for i, kk in T.grid(m, k):
            with T.sblock("C"):
                vi, vk = T.axis.remap("SR", [i, kk])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vk])

    return _module(main)


def in_place(m: int, n: int, k: int, dtype: str) -> tvm.IRModule:
    """Add to what the output holds: no initial value."""
    return _product((m, n, k), dtype, ((m, k), (n, k), (m, n)), adds=True)


def beta(m: int, n: int, k: int, dtype: str) -> tvm.IRModule:
    """Add the product to twice what the output holds, in a separate block."""

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((m, k), dtype), B: T.Buffer((n, k), dtype), D: T.Buffer((m, n), "float32")
    ):
        C = T.sblock_alloc_buffer((m, n), "float32")
        for i, j, kk in T.grid(m, n, k):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, kk])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])
        for i, j in T.grid(m, n):
            with T.sblock("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = D[vi, vj] * T.float32(2) + C[vi, vj]

    return _module(main)


def bias_first(m: int, n: int, k: int, dtype: str) -> tvm.IRModule:
    """Start the sum from a bias and a residual."""

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((m, k), dtype),
        B: T.Buffer((n, k), dtype),
        bias: T.Buffer((n + 2,), dtype),
        R: T.Buffer((m, n), "float32"),
        C: T.Buffer((m, n), "float32"),
    ):
        for i, j, kk in T.grid(m, n, k):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, kk])
                with T.init():
                    C[vi, vj] = T.Cast("float32", bias[vj + 2]) + R[vi, vj]
                C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])

    return _module(main)


def two_outputs(m: int, n: int, k: int, dtype: str) -> tvm.IRModule:
    """Keep a layer's value before its activation, in half precision."""
    a, b, c = product_of(m, n, k, dtype)
    bias = te.placeholder((n,), dtype, name="bias")
    wide = te.compute((n,), lambda j: bias[j].astype("float32"), name="bias_wide")
    pre = te.compute((m, n), lambda i, j: (c[i, j] + wide[j]).astype(dtype), name="P")
    out = te.compute((m, n), lambda i, j: te.max(pre[i, j], te.const(0, dtype)), name="D")
    return tvm.IRModule({"main": te.create_prim_func([a, b, bias, pre, out])})


def product_and_activation(m: int, n: int, k: int, dtype: str) -> tvm.IRModule:
    """Return the product itself, its activation, and that transposed."""
    a, b, c = product_of(m, n, k, dtype)
    d = te.compute(
        (m, n), lambda i, j: te.max(c[i, j], te.const(0, "float32")).astype(dtype), name="D"
    )
    e = te.compute((n, m), lambda j, i: d[i, j] + te.const(1, dtype), name="E")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c, d, e])})


FORMS: dict[str, Form] = {
    form.__name__: form
    for form in (
        row_strides,
        symbolic_strides,
        column_strides,
        offsets,
        slices,
        packed_qkv,
        unit_dimensions,
        one_row,
        matrix_vector,
        in_place,
        beta,
        bias_first,
        two_outputs,
        product_and_activation,
    )
}
