"""Matmuls in every form that the schedule helpers accept, for tests, tutorials and benchmarks.

Layouts are named as BLAS does: the first letter is A's, the second B's, N is "as it is", T is
"transposed".  C[m, n] = sum over k of A times B with

    NN  A[m, k] B[k, n]      NT  A[m, k] B[n, k]
    TN  A[k, m] B[k, n]      TT  A[k, m] B[n, k]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import DTYPES

LAYOUTS = ("NN", "NT", "TN", "TT")
Extent = Any  # an int, a name, which makes a symbolic extent, or an expression of one


@dataclass(frozen=True)
class Epilogue:
    """One elementwise step after the product: `compute(value, index, operands)`.

    `operands` maps a name to how its shape follows from the output's: "row" (one value a row),
    "col" (one a column) or "full".
    """

    name: str
    operands: tuple[tuple[str, str], ...]
    compute: Callable[..., Any]
    reference: Callable[..., np.ndarray]  # of float64 arrays, operands broadcastable
    stages: int = 1  # 2: a diamond x * f(x), in which f(x) is a separate stage


def _const(value: float, like: Any) -> Any:
    return te.const(value, _dtype(like))


def _dtype(expr: Any) -> str:
    inner = expr.ty.dtype
    return str(getattr(inner, "dtype", inner))


_erf = np.vectorize(math.erf, otypes=[float])


def _relu(x: Any) -> Any:
    return te.max(x, _const(0, x))


def _gelu(x: Any) -> Any:
    # the exact form, by the error function
    return x * _const(0.5, x) * (_const(1, x) + te.erf(x * _const(0.5**0.5, x)))


EPILOGUES: dict[str, Epilogue] = {
    e.name: e
    for e in (
        Epilogue("relu", (), _relu, lambda x: np.maximum(x, 0)),
        Epilogue("gelu", (), _gelu, lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2)))),
        Epilogue("silu", (), lambda x: te.sigmoid(x), lambda x: x / (1 + np.exp(-x)), stages=2),
        Epilogue("scale", (), lambda x: x * _const(0.125, x), lambda x: x * 0.125),
        Epilogue("bias_col", (("bias_col", "col"),), lambda x, b: x + b, lambda x, b: x + b),
        Epilogue("bias_row", (("bias_row", "row"),), lambda x, b: x + b, lambda x, b: x + b),
        Epilogue("residual", (("residual", "full"),), lambda x, r: x + r, lambda x, r: x + r),
    )
}


@dataclass(frozen=True)
class MatmulForm:
    """How a product is written down.

    - `acc_dtype`: element type of the sum.
    - `cast`: "before" or "after" the product, or "none" when `acc_dtype` is the operands' type.
    - `cast_stage`: the cast of the operands is a te stage of its own.
    - `swap`: multiply B by A instead of A by B.
    - `batch`: a and C get a leading dimension of one.
    - `index`: type of the loop variables, "int32" or "int64".
    """

    acc_dtype: str = "float32"
    cast: str = "before"
    cast_stage: bool = False
    swap: bool = False
    batch: bool = False
    index: str = "int32"


def matmul(
    m: Extent,
    n: Extent,
    k: Extent,
    layout: str = "NT",
    dtype: str = "float16",
    out_dtype: str = "float32",
    *,
    epilogue: tuple[str, ...] = (),
    **form: Any,
) -> tvm.IRModule:
    """Build C = A B with te, as a module with the function "main", plain loops.

    - `m`, `n`, `k`: extents; a name makes a symbolic extent of it.
    - `layout`: one of NN, NT, TN, TT, see the module's docstring.
    - `dtype`, `out_dtype`: element types of A and B, and of the output.
    - `epilogue`: names out of EPILOGUES, applied in order to the sum, before the cast to
      `out_dtype`.
    - `**form`: attributes of `MatmulForm`.
    - returns: arguments of "main": A, B, the operands of the epilogue in order, the output.
    """
    f = MatmulForm(**form)
    index, acc_dtype = f.index, f.acc_dtype
    extent = {name: _extent(size, index) for name, size in (("m", m), ("n", n), ("k", k))}
    lead = (tirx.const(1, index),) if f.batch else ()
    a_axes, b_axes = {"N": "mk", "T": "km"}[layout[0]], {"N": "kn", "T": "nk"}[layout[1]]
    a = te.placeholder((*lead, *(extent[x] for x in a_axes)), dtype, name="A")
    b = te.placeholder(tuple(extent[x] for x in b_axes), dtype, name="B")
    a_in, b_in = (_cast_stage(t, acc_dtype) if f.cast_stage else t for t in (a, b))
    axis = te.reduce_axis((tirx.const(0, index), extent["k"]), "k")

    def product(*point: Any) -> Any:
        *first, i, j = point
        at = {"m": i, "n": j, "k": axis.var}
        x, y = a_in(*first, *(at[d] for d in a_axes)), b_in(*(at[d] for d in b_axes))
        if f.cast == "before" and not f.cast_stage:
            x, y = x.astype(acc_dtype), y.astype(acc_dtype)
        value = y * x if f.swap else x * y
        return te.sum(value.astype(acc_dtype) if f.cast == "after" else value, axis=axis)

    shape = (*lead, extent["m"], extent["n"])
    value, arguments = te.compute(shape, product, name="C"), [a, b]
    for name in epilogue:
        value, extra = _apply(EPILOGUES[name], value, shape, dtype)
        arguments += extra
    if out_dtype != acc_dtype:
        last = value
        value = te.compute(shape, lambda *i: last(*i).astype(out_dtype), name="D")
    func = te.create_prim_func([*arguments, value], index_dtype_override=None)
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def make_inputs(mod: tvm.IRModule, seed: int = 0, **extents: int) -> list[np.ndarray]:
    """Fill every argument of "main" but the last, the output, with integers from -2 to 2.

    Sums of their products are exact in float32, so a right kernel gives the right bits. `extents`
    are the values of the symbolic extents.
    """
    rng = np.random.default_rng(seed)
    arrays = []
    for shape, dtype in argument_types(mod, **extents)[:-1]:
        arrays.append(rng.integers(-2, 3, shape).astype(numpy_type(dtype)))
    return arrays


def argument_types(mod: tvm.IRModule, **extents: int) -> list[tuple[tuple[int, ...], str]]:
    """Return shape and element type of every argument of "main"."""
    return [
        (tuple(_value(e, extents) for e in p.ty.shape), _dtype(p))
        for p in mod["main"].params
        if tirx.is_buffer_var(p)
    ]


def _value(extent: Any, values: dict[str, int]) -> int:
    named = {var: values[var.name] for var in ir.find_all(extent, ir.Var)}
    return int(ir.simplify(ir.substitute(extent, named)))


def numpy_type(dtype: str) -> np.dtype:
    """Return the numpy type of a TVM type, bfloat16 included."""
    return DTYPES[dtype].numpy


def reference(
    inputs: list[np.ndarray], layout: str = "NT", epilogue: tuple[str, ...] = ()
) -> np.ndarray:
    """Compute a workload in float64 from the arguments of "main", output left out."""
    a, b, *extra = (x.astype(np.float64) for x in inputs)
    value = (a if layout[0] == "N" else a.swapaxes(-1, -2)) @ (b if layout[1] == "N" else b.T)
    for step in map(EPILOGUES.__getitem__, epilogue):
        operands = [
            extra.pop(0)[:, None] if kind == "row" else extra.pop(0) for _, kind in step.operands
        ]
        value = step.reference(value, *operands)
    return value


def _cast_stage(tensor: Any, dtype: str) -> Any:
    return te.compute(
        tensor.shape, lambda *i: tensor(*i).astype(dtype), name=f"{tensor.op.name}_cast"
    )


def _extent(size: Extent, index: str) -> Any:
    if isinstance(size, str):
        return te.var(size, index)
    return tirx.const(size, index) if isinstance(size, int) else size


def _apply(step: Epilogue, value: Any, shape: tuple[Any, ...], dtype: str) -> tuple[Any, list[Any]]:
    """Append one step of the epilogue; return the new value and the step's arguments."""
    shapes = {"row": shape[-2:-1], "col": shape[-1:], "full": shape}
    extra = [te.placeholder(shapes[kind], dtype, name=name) for name, kind in step.operands]

    def compute(*point: Any) -> Any:
        at = {"row": point[-2:-1], "col": point[-1:], "full": point}
        x = value(*point)
        operands = [
            t(*at[kind]).astype(_dtype(x))
            for t, (_, kind) in zip(extra, step.operands, strict=True)
        ]
        return step.compute(x, *operands)

    # a stage is an output when it is last: then no argument may have its name
    result = te.compute(shape, compute, name=f"{step.name}_sum" if extra else step.name)
    if step.stages == 2:  # x * f(x): both stages read the same value
        factor = result
        result = te.compute(shape, lambda *i: value(*i) * factor(*i), name=f"{step.name}_product")
    return result, extra
