"""Norms of bfloat16 that TVM does not legalise, in float32.

    y = layer_norm(x, g, b)    ->    y = bfloat16(layer_norm(float32(x), float32(g), float32(b)))

TVM's LayerNorm and instance norm are for float32 and float16 alone, and the build ends there.  The
casts are part of the norm's function, so a kernel reads and writes bfloat16 as the model says.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

NARROW, WIDE = "bfloat16", "float32"
NORMS = {  # which attributes TVM's functions take besides axes and epsilon
    "relax.nn.layer_norm": ("layer_norm", ()),
    "relax.nn.instance_norm": ("instance_norm", ("channel_axis",)),
}


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.WideNorms")
class WideNorms:
    """See the module's docstring for the rewrite."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Legalise the norms that TVM refuses."""
        rewriter = _Norms(mod)
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function) and not is_left(func):
                new = rewriter.visit_expr(func)
                if not new.same_as(func):
                    rewriter.builder_.update_func(gv, new)
        return rewriter.builder_.get()


def is_left(func: relax.Function) -> bool:
    """Tell a function that a library computes."""
    return bool(func.attrs) and ("Codegen" in func.attrs or "Composite" in func.attrs)


@mutator
class _Norms(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        """Write a norm of bfloat16 as one function of te."""
        call = super().visit_call_(call)
        name = getattr(call.op, "name", "")
        if name not in NORMS or str(call.args[0].ty.dtype) != NARROW:
            return call
        function, others = NORMS[name]
        given: dict[str, Any] = {x: int(getattr(call.attrs, x)) for x in others}
        axes = [int(x) % call.args[0].ty.ndim for x in call.attrs.axes]
        given.update(axis=axes, epsilon=float(call.attrs.epsilon))

        def wide(*tensors: te.Tensor) -> te.Tensor:
            norm = getattr(topi.nn, function)
            return topi.cast(norm(*(topi.cast(x, WIDE) for x in tensors), **given), NARROW)

        return self.builder_.call_te(wide, *call.args, primfunc_name_hint=function)
