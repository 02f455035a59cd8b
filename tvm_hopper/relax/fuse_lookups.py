"""Fuse the choice of matrices by a table into the product that reads them.

    w = R.call_tir(take, (experts, chosen), R.Tensor((tokens, n, k)))
    y = R.call_tir(matmul, (x, w), R.Tensor((tokens, 1, n)))
  ->
    y = R.call_tir(fused_take_matmul, (experts, chosen, x), R.Tensor((tokens, 1, n)))

The chosen matrices are then loaded from where they lie: a model of experts would write them to
memory and read them again for each token.

Needs: fused functions (FuseTIR).
Leaves: functions that `hs.matmul` takes; other calls stay as they are.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from tvm_hopper import dlight, ir
from tvm_hopper.schedule.reasons import TVM_ERRORS

from .call_groups import CallGraph, CallGroup, fuse_group, is_plain_call, rewrite_groups
from .flat_functions import has_product
from .options import ModelOptions


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.FuseLookups")
class FuseLookups:
    """The pass; see the module."""

    def __init__(self, options: ModelOptions) -> None:
        self.options = options

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Fuse lookups into products, where `hs.matmul` takes the function of both."""
        target = Target.current(allow_none=False)
        rule = dlight.Matmul(
            self.options.accumulate, classes=(), batch_invariant=self.options.batch_invariant
        )
        made: dict[Any, Any] = {}

        def fused(group: CallGroup) -> tirx.PrimFunc | None:
            try:
                func = fuse_group(mod, group)
            except TVM_ERRORS:  # what TVM cannot fuse stays two functions
                return None
            return func if rule.apply(func, target, False) is not None else None

        def accepts(group: CallGroup) -> bool:
            *lookups, product = (mod[x.value.args[0]] for x in group.calls)
            if len(group.outputs) > 1 or not has_product(product):
                return False
            if not all(map(is_lookup, lookups)):
                return False
            if group.key not in made:
                made[group.key] = fused(group)
            return made[group.key] is not None

        def grow(graph: CallGraph) -> None:
            graph.grow(lambda x: is_plain_call(mod, x), accepts)

        return rewrite_groups(mod, grow, made)


def is_lookup(func: tirx.PrimFunc) -> bool:
    """Tell a function that copies elements from places which another tensor holds."""
    blocks = ir.find_all(func.body, ir.SBlock, lambda x: bool(x.iter_vars))
    loads = [x.body.value for x in blocks if isinstance(x.body, ir.BufferStore)]
    loads = [x for x in loads if isinstance(x, ir.TensorLoad)]
    looked_up = [x for x in loads if ir.find_all(list(x.indices), ir.TensorLoad)]
    return len(loads) == len(blocks) and bool(looked_up)
