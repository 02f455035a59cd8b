"""Products with any axes and of any types, written as einsum writes them.

    contraction("bmk,bnk->bmn", {"b": 3, "m": 100, "n": 72, "k": 40})

Each letter is an axis; in A and B a letter may be missing, which repeats the tensor along it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from .tiling import module_of
from .workloads import Extent, _extent


def contraction(
    formula: str,
    extents: Mapping[str, Extent],
    dtypes: tuple[str, str] = ("float16", "float16"),
    sum_dtype: str = "float32",
    epilogue: Callable[..., Any] | None = None,
    operands: Mapping[str, str] | None = None,
) -> tvm.IRModule:
    """Build C = sum of A B with te, as a module with the function "main", plain loops.

    - `formula`: the axes of A, of B and of the output, as of `numpy.einsum`.
    - `extents`: by axis: an int, or a name, which makes a symbolic extent of it.
    - `dtypes`: element types of A and B.
    - `sum_dtype`: element type of the sum.
    - `epilogue` (callable): returns an element of the output D, of a function of an index that
      gives an element of the sum, the index, and the tensors that are named in `operands`.
    - `operands`: tensors of float32 by name: their axes; an axis "1" has one element.
    - returns: arguments of "main": A, B, the operands of the epilogue, the output.
    """
    inputs, out = formula.split("->")
    left, right = inputs.split(",")
    sizes = {x: _extent(extents[x], "int32") for x in dict.fromkeys(left + right)}
    a, b = (
        te.placeholder(tuple(sizes[x] for x in axes), dtype, name=name)
        for axes, dtype, name in ((left, dtypes[0], "A"), (right, dtypes[1], "B"))
    )
    summed = {
        x: te.reduce_axis((tirx.const(0, "int32"), size), x)
        for x, size in sizes.items()
        if x not in out
    }

    def product(*point: Any) -> Any:
        at = dict(zip(out, point, strict=True)) | {x: axis.var for x, axis in summed.items()}
        x, y = a(*(at[i] for i in left)), b(*(at[i] for i in right))
        cast = [value.astype(sum_dtype) for value in (x, y)]
        return te.sum(cast[0] * cast[1], axis=list(summed.values()))

    shape = tuple(sizes[x] for x in out)
    value = te.compute(shape, product, name="C")
    one = {"1": tirx.const(1, "int32")}
    more = {
        name: te.placeholder(tuple((sizes | one)[x] for x in axes), "float32", name=name)
        for name, axes in (operands or {}).items()
    }
    if epilogue is not None:
        total = value
        value = te.compute(shape, lambda *i: epilogue(total, *i, **more), name="D")
    func = te.create_prim_func([a, b, *more.values(), value], index_dtype_override=None)
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def reference(formula: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute a contraction in float64."""
    return np.einsum(formula, a.astype(np.float64), b.astype(np.float64))


def grouped(rows: int, group: int, columns: int, depth: int, experts: int) -> tvm.IRModule:
    """Build a product whose rows, in groups, are multiplied by the matrix that a table names.

    C[i, j] is the sum of A[i, k] * B[E[i // group], j, k], of float16 in float32, in plain loops.
    """
    a = te.placeholder((rows, depth), "float16", name="A")
    b = te.placeholder((experts, columns, depth), "float16", name="B")
    e = te.placeholder((rows // group,), "int32", name="E")
    k = te.reduce_axis((0, depth), "k")

    def product(i: Any, j: Any) -> Any:
        x, y = a[i, k], b[e[tirx.indexdiv(i, group)], j, k]
        return te.sum(x.astype("float32") * y.astype("float32"), k)

    c = te.compute((rows, columns), product, name="C")
    return module_of(a, b, e, c)
