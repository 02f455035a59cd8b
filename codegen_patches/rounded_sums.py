"""TIR operators for sums whose operands keep their rounding (no contraction to FMA).

    a * b + c                     one FFMA: the product is not rounded
    add_rn_float32(a * b, c)      FMUL and FADD, as IEEE and the plain program have it

PTX ISA 9.1, 9.7.3.3 add: with a rounding modifier it is not fused with a product (9.7.4.1 for types
of 16 bits), whatever the flags of the compiler are. The operators take numbers and vectors.
"""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir

from .operators import make_known

_C_TYPES = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "nv_bfloat16"}
_FUNCTIONS = {"float32": "__f{}_rn", "float64": "__d{}_rn"}
OPERATIONS = ("add", "sub")
DTYPES = tuple(_C_TYPES)


def register() -> None:
    """Make the operators known to TVM and to its CUDA code generator, once."""
    for operation in OPERATIONS:
        for dtype, c_type in _C_TYPES.items():
            function = _FUNCTIONS.get(dtype, "__h{}_rn").format(operation)
            body = f"""\
    T c;
    #pragma unroll
    for (int i = 0; i < sizeof(T) / sizeof({c_type}); ++i)
      (({c_type}*)&c)[i] = {function}((({c_type}*)&a)[i], (({c_type}*)&b)[i]);
    return c;"""
            name = f"tvm_hopper_{operation}_rn_{dtype}"
            make_known(name, "(T a, T b)", body, returns=("T", _dtype), templated=True)


def _dtype(a: Any, *_: Any) -> str:
    return str(a.ty.dtype)


def rounded_sum(operation: str, a: Any, b: Any) -> Any:
    """Build a + b ("add") or a - b ("sub") of floats, neither fused with a product."""
    register()
    dtype = ir.dtype_of(a).partition("x")[0]
    return ir.call_op(f"tirx.tvm_hopper_{operation}_rn_{dtype}", str(a.ty.dtype), a, b)
