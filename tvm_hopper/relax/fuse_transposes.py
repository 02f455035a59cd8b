"""Products of a tensor and a transposed one, without a copy of it.

    t = permute_dims(w); y = matmul(x, t)    ->    y = NT_matmul(x, w)

TVM's `FuseTransposeMatmul` does this, and fails where both operands are one tensor: x times x
transposed, or t times t.  Here such products stay as they are; the others are TVM's.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.transform import fuse_transpose_matmul as stock

NAME = "transpose_matmul_fuse"  # by which TVM's pass finds what was fused


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.FuseTransposes")
class FuseTransposes:
    """See the module's docstring for the rewrite."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Fuse what reads two tensors."""
        pattern, parts, is_last_two = stock._pattern()

        def reads_two(context: Any) -> bool:
            product, turned = context.annotated_expr["o"], context.annotated_expr["wT"]
            one = product.args[0]
            same = one.same_as(product.args[1]) or one.same_as(turned.args[0])
            return not same and is_last_two(context)

        patterns = [(NAME, pattern, parts, reads_two)]
        mod = relax.transform.FuseOpsByPattern(patterns, bind_constants=False)(mod)
        fuser = stock._TransposeMatmulFuser(mod)
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function):
                fuser.builder_.update_func(gv, fuser.visit_expr(func))
        return fuser.builder_.get()
