"""Compute in float32 the functions that CUDA does not have for types of 16 bits.

    Y[i] = T.cosh(X[i])
  ->
    Y[i] = T.Cast("float16", T.cosh(T.Cast("float32", X[i])))

TVM prints `hcosh`, which no header declares, or has no rule for the call at all: the first is an
error of the compiler that names no operator, the second one inside of TVM. A float32 holds every
value of 16 bits, so the result is that of the exact function, rounded twice.

Before: any calls.  After: none of these functions has an operand of 16 bits.
Left alone: functions that CUDA or TVM's own header has for them, as exp and tanh.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.plan.short_functions import HALVES

FUNCTIONS_OF_FLOAT = frozenset(
    f"tirx.{name}"
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan2", "atanh", "copysign", "cosh", "fmod", "hypot"),
        *("ldexp", "log1p", "nearbyint", "sinh"),
    )
)
WIDE = "float32"


def plan_wide_functions(func: tirx.PrimFunc) -> list[ir.Call]:
    """Find the calls of 16 bits that have to be of 32."""
    return ir.find_all(func.body, ir.Call, _is_missing)


def _is_missing(call: ir.Call) -> bool:
    return getattr(call.op, "name", "") in FUNCTIONS_OF_FLOAT and ir.dtype_of(call) in HALVES


def rewrite_wide_functions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Widen the operands, and round the result."""

    def call(node: ir.Call, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if not _is_missing(node):
            return node
        given = [tirx.Cast(WIDE, x) if ir.dtype_of(x) in HALVES else x for x in node.args]
        wide = tirx.call_intrin(WIDE, node.op, *given)
        return tirx.Cast(ir.dtype_of(node), wide)

    return func.with_body(ir.mutate(func.body, [(ir.Call, call)]))


@prim_func_pass(opt_level=0, name="tvm_hopper.WidenFunctions")
class WidenFunctions:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Widen what one function's kernels compute."""
        if not plan_wide_functions(func):
            return func
        after = rewrite_wide_functions(func)
        assert not plan_wide_functions(after), "WidenFunctions left a call behind"
        return after
