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


def model_of(
    build: Callable[..., Any],
    *tensors: Any,
    name: str = "main",
    num_input: int | None = None,
    takes_builder: bool = False,
) -> tvm.IRModule:
    """Return a module with one Relax function, which computes an expression in a dataflow block.

    - `build` (callable): takes the builder if `takes_builder`, and a variable for each tensor;
      returns an expression, or a list of several outputs.
    - `tensors` (tuple or Var): shape and dtype, a name in a shape is a symbolic extent, int64; or
      the variable.
    """
    symbols: dict[str, Any] = {}
    given = [
        x if isinstance(x, relax.Var) else relax.Var(f"x{i}", _type(x, symbols))
        for i, x in enumerate(tensors)
    ]
    builder = relax.BlockBuilder()
    with builder.function(name, given, {} if num_input is None else {"num_input": num_input}):
        with builder.dataflow():
            out = build(builder, *given) if takes_builder else build(*given)
            out = relax.Tuple([*map(builder.emit, out)]) if isinstance(out, list) else out
            is_bound = isinstance(out, (relax.Var, relax.Tuple))
            out = builder.emit_output(out if is_bound else builder.emit(out))
        builder.emit_func_output(out)
    return builder.finalize()


def legalize(build: Callable[..., Any], *tensors: Tensor) -> tvm.IRModule:
    """Return the PrimFuncs that an expression of tensors becomes, without the Relax function.

    - `build`, `tensors`: as of `model_of`.
    - returns: each function with its own `global_symbol`, and arguments of names of their own.
    """
    mod = relax.transform.FuseTransposeMatmul()(model_of(build, *tensors))
    mod = relax.get_pipeline("zero")(mod)
    pairs = [x for x in mod.functions_items() if isinstance(x[1], tirx.PrimFunc)]
    functions = {gv.name_hint: func for gv, func in pairs}
    return tvm.IRModule({name: name_arguments(f, name) for name, f in functions.items()})


def _type(tensor: Tensor, symbols: dict[str, Any]) -> relax.TensorType:
    shape, dtype = tensor
    extents = [
        symbols.setdefault(x, tirx.Var(x, "int64")) if isinstance(x, str) else x for x in shape
    ]
    return relax.TensorType(extents, dtype)


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
