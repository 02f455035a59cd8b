"""Fuse transposes into products, without a copy.

    t = permute_dims(w); y = matmul(x, t)    ->    y = NT_matmul(x, w)

TVM's `FuseTransposeMatmul` fails if both operands are one tensor (x times x transposed, or t times
t), if t has another reader, and on transposes of one or three dimensions without axes. Here
products of one tensor stay as they are, each of the others gets a t of its own, and TVM fuses it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.transform import fuse_transpose_matmul as stock

from .mutator_passes import is_for_library, rewrite_functions
from .simplify_operands import MATMUL, PERMUTE, maker_of, swaps_last_two

NAME = "transpose_matmul_fuse"  # by which TVM's pass finds what was fused


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.FuseTransposes")
class FuseTransposes:
    """See the module's docstring for the rewrite."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Fuse what reads two tensors."""
        pattern, parts, _ = stock._pattern()

        def is_fused(context: Any) -> bool:
            product, turned = (context.annotated_expr[x] for x in ("o", "wT"))
            var = context.value_to_bound_var.get(turned)
            inner = isinstance(var, relax.DataflowVar) and len(context.var_usages[var]) == 1
            return inner and _reads_two(product, turned)

        mod = rewrite_functions(mod, _OwnTransposes(mod), is_for_library)
        patterns = [(NAME, pattern, parts, is_fused)]
        mod = relax.transform.FuseOpsByPattern(patterns, bind_constants=False)(mod)
        fuser = stock._TransposeMatmulFuser(mod)
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function):
                fuser.builder_.update_func(gv, fuser.visit_expr(func))
        return fuser.builder_.get()


def _reads_two(product: Any, turned: Any) -> bool:
    """Tell a product of a tensor and another one whose last two dimensions are swapped."""
    lhs, source = product.args[0], turned.args[0]
    if lhs.same_as(product.args[1]) or lhs.same_as(source):
        return False
    return swaps_last_two(turned, source.ty.ndim)


@mutator
class _OwnTransposes(PyExprMutator):  # type: ignore[misc]
    changed = False

    def visit_call_(self, call: Any) -> Any:
        """Turn a product's operand once more."""
        call = super().visit_call_(call)
        if call.op != MATMUL or not isinstance(call.args[1], relax.Var):
            return call
        if not self.builder_.current_block_is_dataflow():  # where TVM looks for products
            return call
        turned = maker_of(self, call.args[1], PERMUTE)
        if turned is None or not _reads_two(call, turned):
            return call
        self.changed = True
        transposed = self.builder_.emit(relax.op.permute_dims(turned.args[0], turned.attrs.axes))
        return relax.op.matmul(call.args[0], transposed, out_dtype=call.attrs.out_dtype)
