"""Functions as Relax legalises and fuses them: what dlight's rules are handed.

module = legalize(lambda x: relax.op.nn.softmax(x, axis=-1), ((1, "s", 4096), "float16"))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_hopper import ir

Tensor = tuple[tuple[int | str, ...], str]
NORM = {"axes": [-1], "epsilon": 1e-5}


def legalize(build: Callable[..., Any], *tensors: Tensor) -> tvm.IRModule:
    """Return the PrimFuncs that an expression of tensors becomes, without the Relax function.

    - `build` (callable): takes a variable for each tensor and returns an expression, or a list of
      several outputs.
    - `tensors`: a name in a shape is a symbolic extent, int64.
    - returns: each function with its own `global_symbol`, and arguments of names of their own.
    """
    symbols: dict[str, Any] = {}
    builder = relax.BlockBuilder()
    given = [
        relax.Var(f"x{i}", relax.TensorType([_extent(n, symbols) for n in shape], dtype))
        for i, (shape, dtype) in enumerate(tensors)
    ]
    with builder.function("main", given):
        with builder.dataflow():
            out = build(*given)
            out = relax.Tuple([*map(builder.emit, out)]) if isinstance(out, list) else out
            out = builder.emit_output(out)
        builder.emit_func_output(out)
    mod = relax.transform.FuseTransposeMatmul()(relax.transform.Normalize()(builder.finalize()))
    mod = relax.get_pipeline("zero")(mod)
    functions = {gv.name_hint: f for gv, f in mod.functions_items() if _is_prim(f)}
    return tvm.IRModule({name: name_arguments(f, name) for name, f in functions.items()})


def _is_prim(func: Any) -> bool:
    return isinstance(func, tirx.PrimFunc)


def _extent(size: int | str, symbols: dict[str, Any]) -> Any:
    return symbols.setdefault(size, tirx.Var(size, "int64")) if isinstance(size, str) else size


def name_arguments(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """Give a function a name, and its tensors names that occur once: Relax repeats them."""
    buffers = {
        x: ir.new_buffer(f"a{i}", tuple(x.ty.shape), ir.dtype_of(x), "global")
        for i, x in enumerate(func.params)
        if hasattr(x.ty, "shape")
    }
    body = ir.substitute(func.body, buffers)
    params = [buffers.get(x, x) for x in func.params]
    attrs = {**dict(func.attrs), "global_symbol": name}
    return tirx.PrimFunc(params, body, func.ret_type).with_attrs(attrs)
