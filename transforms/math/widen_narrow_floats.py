"""Compute in float32 what CUDA lacks for 16-bit types, and all arithmetic of float8.

    Y[i] = T.cosh(X[i])
  ->
    Y[i] = T.Cast("float16", T.cosh(T.Cast("float32", X[i])))

TVM prints `hcosh`, which no header declares, or has no rule for the operation (remainders of 16
bits): the first is an error of the compiler that names no operator, the second one inside of TVM.
A float32 holds every value of 16 bits, so the result is that of the exact function, rounded twice.
CUDA only converts float8: each operation is rounded, as with 16 bits.

Before: any calls. After: none of these functions has an operand of 16 bits, and nothing but a
conversion or a choice one of float8. Left alone: functions that CUDA or TVM's own header has for 16
bits, as exp. The header's tanh of float16 is the rounded tanh of a float32: written so, it has a
shorter form (approximate_functions.py). Refused: conversions of float8 on chips without them. TVM's
text for those puts the sign into the exponent, and does not compile if it rounds.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests.targets import arch_of

from .approximate_functions_plan import HALVES
from .float_functions import FUNCTIONS_OF_FLOAT

WIDE = "float32"


CHOICES = ("tirx.if_then_else", "tirx.likely", "tirx.reinterpret")  # which need no arithmetic
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.Max, tirx.Min)
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def plan_wide_functions(func: tirx.PrimFunc) -> list[Any]:
    """Find the operations of 16 bits or fewer that have to be of 32."""
    kinds = (ir.Call, *_ARITHMETIC, *_COMPARISONS)
    return [x for kind in kinds for x in ir.find_all(func.body, kind, _is_missing)]


def _is_missing(node: Any) -> bool:
    if isinstance(node, ir.Call):
        name = getattr(node.op, "name", "")
        is_function = name.startswith(("tirx.", "prim.")) and name not in CHOICES
        missing = name in FUNCTIONS_OF_FLOAT and ir.dtype_of(node) in HALVES
        missing = missing or (name == "tirx.tanh" and ir.dtype_of(node) == "float16")
        return missing or (is_function and any(map(_is_float8, node.args)))
    return _is_float8(node.a) or (isinstance(node, tirx.Mod) and ir.dtype_of(node) in HALVES)


def check_float8(func: tirx.PrimFunc) -> None:
    """Refuse conversions from and to float8 that the function's chip has no instruction for.

    - raises LoweringError: there is one.
    """
    if arch_of(func).converts_float8:
        return
    for store in ir.find_all(func.body, ir.BufferStore):
        for cast in ir.find_all(store.value, tirx.Cast, _is_of_float8):
            given = _is_float8(cast.value)
            kind = ir.dtype_of(cast.value if given else cast).split("x")[0]
            loads = ir.find_all(cast, ir.TensorLoad, _is_float8)
            buffer = loads[0].source if loads else store.buffer
            raise cannot_lower(
                f"tensor {buffer.name.removesuffix('_local')}",  # a thread's part of it
                f"a conversion {'from' if given else 'to'} {kind}",
                "a chip of compute capability 8.9 or later, as sm_90a",
                "build for nvidia/nvidia-h200, or keep the tensor in float16 or int8",
            )


def _is_of_float8(cast: tirx.Cast) -> bool:
    return _is_float8(cast.value) or _is_float8(cast)


def _is_float8(value: Any) -> bool:
    has_type = hasattr(getattr(value, "ty", None), "dtype")  # a string has none
    return has_type and not tirx.is_buffer_var(value) and ir.dtype_of(value).startswith("float8")


def rewrite_wide_functions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Widen the operands, and round the result."""

    def widen(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if not _is_missing(node):
            return node
        given = [_wide(x) for x in (node.args if isinstance(node, ir.Call) else (node.a, node.b))]
        if isinstance(node, _COMPARISONS):
            return type(node)(*given)
        if not isinstance(node, ir.Call):
            return tirx.Cast(ir.dtype_of(node), type(node)(*given))
        dtype = ir.dtype_of(node)
        is_value = dtype in HALVES or _is_float8(node)
        wide = tirx.call_intrin(WIDE if is_value else dtype, node.op, *given)
        return tirx.Cast(dtype, wide) if is_value else wide

    kinds = (ir.Call, *_ARITHMETIC, *_COMPARISONS)
    return func.with_body(ir.mutate(func.body, [(kind, widen) for kind in kinds]))


def _wide(value: Any) -> Any:
    return tirx.Cast(WIDE, value) if ir.dtype_of(value) in HALVES or _is_float8(value) else value


def widen_narrow_floats(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Widen what one function's kernels compute."""
    check_float8(func)
    if not plan_wide_functions(func):
        return func
    after = rewrite_wide_functions(func)
    assert not plan_wide_functions(after), "widen_narrow_floats left an operation behind"
    return after
