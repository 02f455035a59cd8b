"""Refuse what no pass has acted on: nothing may fall away, or stay on the host, in silence.

    with sblock("C", annotations={"tvm_hopper.wgmma": 1}): ...        in no kernel
  ->
    LoweringError: block C, tvm_hopper.wgmma: found ...

Before: every other pass at the hook has run.  After: no annotation of ours is left for stock passes
to drop.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.keys import KEYS


def check_leftovers(func: tirx.PrimFunc) -> None:
    """Raise for the first annotation of ours that is left."""
    for block in ir.find_all(func.body, ir.SBlock):
        _check(f"block {block.name_hint}", block.annotations)
    for loop in ir.find_all(func.body, ir.For):
        _check(f"loop {loop.loop_var.name}", loop.annotations)
    host = ir.map_kernels(func, lambda _: ir.seq())
    for block in ir.find_all(host.body, ir.SBlock, lambda x: isinstance(x.body, ir.BufferStore)):
        raise cannot_lower(
            f"block {block.name_hint}",
            f"a store into {block.body.buffer.name} outside of every kernel",
            "loops bound to blockIdx and threadIdx around it",
            "schedule the block as a kernel, or inline it",
        )


def _check(where: str, annotations: Any) -> None:
    for key in annotations:
        if str(key) in KEYS:
            raise cannot_lower(
                f"{where}, {key}",
                "an annotation outside of the kernel, or of the loop, that it is about",
                "it inside loops bound to blockIdx, with asynchronous copies in a pipelined loop",
                "bind the loops first, or take the annotation away",
            )


@prim_func_pass(opt_level=0, name="tvm_hopper.RefuseLeftovers")
class RefuseLeftovers:
    """See the module's docstring."""

    def transform_function(self, func, mod, ctx):
        """Check one function."""
        check_leftovers(func)
        return func
