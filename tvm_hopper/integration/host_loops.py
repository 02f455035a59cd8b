"""Refuse GPU functions that touch tensors outside of kernels.

    tvm.compile(plain_loops, target="nvidia/nvidia-h200")       a host loop over device pointers

The host cannot read a device's memory. TVM's VerifyMemory refuses such functions where their
parameters are pointers, and overlooks buffers. Functions for the host carry a host target or
`tirx.is_host_func`: they pass. So do functions that hand tensors to callees.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from tvm_hopper import ir
from tvm_hopper.analysis.host_code import host_code, place_of, touched_elements
from tvm_hopper.errors import LoweringError, cannot_lower
from tvm_hopper.requests import marks

LIFTED = "s_tir.UnifyThreadBinding"  # from here on loops of threads are where they end up
NEED = "kernels: loops bound to blockIdx and threadIdx around every use of a tensor"
FOR_HOST = 'give a function for the host func.with_attr("tirx.is_host_func", True)'


def check_host_code(mod: tvm.IRModule) -> None:
    """Refuse the first function that asks nothing of us and touches tensors on the host.

    - raises LoweringError: there is one; the error says which rule takes it, or why each one does
      not.
    """
    for gv, func in mod.functions.items():
        if not _is_for_device(func) or marks.is_marked(func):
            continue
        host = host_code(func)
        uses = touched_elements(host)
        has_threads = bool(ir.kernels(func) or ir.outermost_thread_extents(func.body))
        if uses and has_threads:
            host = host_code(_lifted(gv, func))
            uses = touched_elements(host)
        if uses:
            node, what = uses[0]
            found = f"{what} outside of every kernel"
            where = f"function {gv.name_hint}, {place_of(host, node)}"
            if has_threads:
                raise cannot_lower(where, found, NEED, "schedule the block as a kernel")
            raise _unscheduled(where, found, func)


def _is_for_device(func: Any) -> bool:
    """Tell functions whose host part TVM splits off: others are for the host, or for kernels."""
    if not isinstance(func, tirx.PrimFunc) or int(func.attrs.get("calling_conv", 0)):
        return False
    target = func.attrs.get("target")
    return target is not None and target.kind.name == "cuda" and target.host is not None


def _lifted(gv: tvm.ir.GlobalVar, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function with its loops of threads where TVM's lowering lifts them."""
    from tvm_hopper.pipeline.stock import stock_passes

    mod = tvm.IRModule({gv: func})
    for p in stock_passes():
        mod = p(mod)
        if p.info.name == LIFTED:
            break
    return mod[gv]


def _unscheduled(where: str, found: str, func: tirx.PrimFunc) -> LoweringError:
    """Say which rule makes a kernel of a function without one, or each one's reason."""
    from tvm_hopper.dlight import rules  # late: builds that are refused alone need it
    from tvm_hopper.dlight.rule import HopperRule

    target: Target = func.attrs["target"]
    plain = func.without_attr("target").without_attr("tirx.is_scheduled")
    refused = []
    for rule in rules():
        taken = rule.apply(plain, target, False) is not None
        said = rule.decisions[-1]
        if taken:
            helper = (
                f"hs.{_HELPERS[said.rule]}(sch, ..), or " if isinstance(rule, HopperRule) else ""
            )
            fix = f"schedule it: {helper}tvm_hopper.dlight.rules() for dl.ApplyDefaultSchedule"
            return cannot_lower(where, found, NEED, f"{fix} ({said.rule} takes it); {FOR_HOST}")
        refused.append(f"{said.rule}: {said.reason}")
    fix = f"write a schedule; no rule takes it ({'; '.join(refused)}); {FOR_HOST}"
    return cannot_lower(where, found, NEED, fix)


_HELPERS = {
    "Matmul": "matmul",
    "RowReduction": "row_reduction",
    "ColumnReduction": "column_reduction",
    "Pointwise": "pointwise",
}
