"""TIR operators that say whether a product in a sum is rounded.

    a * b + c                     as the compiler likes
    add_rn_float32(a * b, c)      FMUL and FADD, as IEEE and the plain program have it
    fma_rn_float32(a, b, c)       one FFMA: the product is not rounded

PTX ISA 9.1, 9.7.3.3 add: with a rounding modifier it is not fused with a product (9.7.4.1 for types
of 16 bits), whatever the flags of the compiler are. The operators take numbers and vectors.
"""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir

from .operators import make_known

_C_TYPES = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "nv_bfloat16"}
_OF_HALVES = {"add": "__hadd_rn", "sub": "__hsub_rn", "fma": "__hfma"}
_FUNCTIONS = {
    "float32": {"add": "__fadd_rn", "sub": "__fsub_rn", "fma": "__fmaf_rn"},
    "float64": {"add": "__dadd_rn", "sub": "__dsub_rn", "fma": "__fma_rn"},
    "float16": _OF_HALVES,
    "bfloat16": _OF_HALVES,
}
DTYPES = tuple(_C_TYPES)


def register() -> None:
    """Make the operators known to TVM and to its CUDA code generator, once."""
    for dtype, functions in _FUNCTIONS.items():
        for operation, function in functions.items():
            c_type, names = _C_TYPES[dtype], "abc" if operation == "fma" else "ab"
            elements = ", ".join(f"(({c_type}*)&{x})[i]" for x in names)
            body = f"""\
    T sum;
    #pragma unroll
    for (int i = 0; i < sizeof(T) / sizeof({c_type}); ++i)
      (({c_type}*)&sum)[i] = {function}({elements});
    return sum;"""
            signature = f"({', '.join(f'T {x}' for x in names)})"
            name = f"tvm_hopper_{operation}_rn_{dtype}"
            make_known(name, signature, body, returns=("T", _dtype), templated=True)


def _dtype(a: Any, *_: Any) -> str:
    return str(a.ty.dtype)


def rounded_sum(operation: str, a: Any, b: Any) -> Any:
    """Build a + b ("add") or a - b ("sub") of floats, neither fused with a product."""
    return _call(operation, a, b)


def fused_sum(a: Any, b: Any, c: Any) -> Any:
    """Build a * b + c of floats, rounded once."""
    return _call("fma", a, b, c)


def _call(operation: str, *operands: Any) -> Any:
    register()
    dtype = ir.dtype_of(operands[0]).partition("x")[0]
    return ir.call_op(
        f"tirx.tvm_hopper_{operation}_rn_{dtype}", str(operands[0].ty.dtype), *operands
    )
