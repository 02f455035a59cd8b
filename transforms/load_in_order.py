"""Let the compiler take nothing for constant that a kernel reads behind its wait for launches.

    func.attrs = {"tirx.noalias": True, "tirx.kernel_launch_params": [..., programmatic]}
  ->
    func.attrs = {"tirx.kernel_launch_params": [..., programmatic]}

What is read through `__restrict__` pointers alone CUDA's compiler loads where it likes, in front of
`griddepcontrol.wait` too (seen in SASS), when earlier launches still write it.

Before: TVM has split device functions off, and marked each of them.  After: those that begin early
say nothing of their pointers.
Not here: where they wait (WaitForLaunches).
"""

from __future__ import annotations

from tvm.tirx.transform import prim_func_pass

from .wait_for_launches import LAUNCH_PARAMS, PROGRAMMATIC

NO_ALIAS = "tirx.noalias"


@prim_func_pass(opt_level=0, name="tvm_hopper.LoadInOrder")
class LoadInOrder:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Take `noalias` off a device function that begins early."""
        tags = [str(x) for x in func.attrs.get(LAUNCH_PARAMS, [])]
        return func.without_attr(NO_ALIAS) if PROGRAMMATIC in tags else func
