"""Remove `__restrict__` from kernels that use programmatic dependent launch.

    func.attrs = {"tirx.noalias": True, "tirx.kernel_launch_params": [..., programmatic]}
  ->
    func.attrs = {"tirx.kernel_launch_params": [..., programmatic]}

and let kernels that do not wait be launched as usual, next to others of their function that do.

What is read through `__restrict__` pointers alone CUDA's compiler loads where it likes, before
`griddepcontrol.wait` too (seen in SASS), when earlier launches still write it.

Before: TVM has split device functions off, and marked each of them.  After: those that begin early
say nothing of their pointers.
Not here: where they wait (EnableProgrammaticLaunch).
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import fences
from tvm_hopper.transforms.kernel_pass import function_pass

from .enable_programmatic_launch import LAUNCH_PARAMS, PROGRAMMATIC

NO_ALIAS = "tirx.noalias"


def waits_for_launches(func: tirx.PrimFunc) -> bool:
    """Tell whether a function waits for the launches before it."""
    wait = fences.wait_for_launches()
    calls = ir.find_all(func.body, ir.Call, lambda x: x.op.same_as(wait.op))
    return any(tvm_ffi.structural_equal(x, wait) for x in calls)


def _load_in_order(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Take `noalias` off a device function that begins early, the tag off one that does not."""
    tags = [str(x) for x in func.attrs.get(LAUNCH_PARAMS, [])]
    if PROGRAMMATIC not in tags or ir.is_packed(func):
        return func
    if waits_for_launches(func):
        return func.without_attr(NO_ALIAS)
    return func.with_attr(LAUNCH_PARAMS, [x for x in tags if x != PROGRAMMATIC])


RemoveRestrict = function_pass("RemoveRestrict", _load_in_order)
