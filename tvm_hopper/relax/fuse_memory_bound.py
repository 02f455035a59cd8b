"""Fuse memory-bound calls that depend on each other into one kernel.

    m = R.call_tir(abs_max, (x,), R.Tensor((rows, 1)))
    s = R.call_tir(scale, (m,), R.Tensor((rows, 1)))                  s is an output, too
    q = R.call_tir(divide_round_cast, (x, s), R.Tensor((rows, N), "int8"))
  ->
    v = R.call_tir(fused_abs_max_scale_divide_round_cast, (x,), [R.Tensor((rows, 1)), ...])
    s, q = v[0], v[1]                                                 x is read once

Needs: fused functions (FuseTIR).
Leaves: functions that `hs.row_reduction`, `hs.column_reduction` or `hs.pointwise` takes without
more element-wise accesses than their parts have; other calls stay as they are.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from tvm_hopper import dlight
from tvm_hopper.dlight.rule import HopperRule
from tvm_hopper.schedule.reasons import TVM_ERRORS

from .call_groups import CallGraph, CallGroup, fuse_group, is_plain_call, reduces, rewrite_groups
from .check_builds import find_fault
from .flat_functions import flatten_function, has_product
from .options import ModelOptions


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.FuseMemoryBound")
class FuseMemoryBound:
    """The pass; see the module.

    - `options`: how sums of 16 bits are made.
    """

    def __init__(self, options: ModelOptions) -> None:
        self.options = options

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Fuse what one of our rules takes whole."""
        fuser = _Fuser(mod, Target.current(allow_none=False), self.options)

        def grow(graph: CallGraph) -> None:
            graph.grow(fuser.is_member, lambda x: fuser.function_of(x) is not None)

        return rewrite_groups(mod, grow, fuser.functions)


class _Fuser:
    """Decides which groups become one function."""

    def __init__(self, mod: tvm.IRModule, target: Target, options: ModelOptions) -> None:
        self.mod, self.target, self.options = mod, target, options
        self.functions: dict[tuple[Any, ...], Any] = {}  # None: stays apart
        self.members: dict[Any, bool] = {}  # whether a function may be part of a group
        self.elements: dict[Any, int | None] = {}

    def is_member(self, binding: Any) -> bool:
        """Tell a call of a memory-bound function."""
        if not is_plain_call(self.mod, binding):
            return False
        gv = binding.value.args[0]
        if gv not in self.members:
            self.members[gv] = not has_product(self.mod[gv])
        return self.members[gv]

    def function_of(self, group: CallGroup) -> tirx.PrimFunc | None:
        """Return one function of a group, None where no rule takes it."""
        if group.key not in self.functions:
            self.functions[group.key] = self._fused(group)
        return self.functions[group.key]

    def _fused(self, group: CallGroup) -> tirx.PrimFunc | None:
        callees = [x.value.args[0] for x in group.calls]
        if not any(reduces(self.mod[x]) for x in callees) and _shapes_differ(group):
            return None
        try:
            func = fuse_group(self.mod, group)
        except TVM_ERRORS:  # what TVM cannot fuse stays apart
            return None
        count = self._count_elements(func)
        if count is None or (count and count > sum(map(self._count_of_part, callees))):
            return None
        return func

    def _count_of_part(self, gv: Any) -> int:
        if gv not in self.elements:
            self.elements[gv] = self._count_elements(self.mod[gv])
        return self.elements[gv] or 0

    def _count_elements(self, func: tirx.PrimFunc) -> int | None:
        """Count the tensors that a kernel of ours accesses element by element; None: no kernel."""
        flat = flatten_function(func)
        func = func if flat is None else flat.func
        rules: list[HopperRule] = [dlight.Pointwise()]
        if reduces(func):
            accumulate = self.options.accumulate
            rules = [dlight.RowReduction(accumulate), dlight.ColumnReduction(accumulate)]
        for rule in rules:
            sch = rule.apply(func, self.target, False)
            if sch is not None and find_fault(sch.mod["main"], self.target) is None:
                return len(rule.decisions[-1].elements)
        return None


def _shapes_differ(group: CallGroup) -> bool:
    """Tell outputs of several shapes: one would be computed again for each element of another."""
    shapes = [[str(x) for x in var.ty.shape.values] for var in group.outputs]
    return any(x != shapes[0] for x in shapes[1:])
