"""Let the CUDA compiler unroll the loops that index arrays of a thread.

    for i in range(16): part[i] = X_shared[i * 32 + tx] + 1
  ->
    for i in range(16):  # pragma_unroll = 16
        part[i] = X_shared[i * 32 + tx] + 1

Registers have no addresses: where a loop that says which element a statement takes stays a loop,
the whole array goes to local memory. By itself the CUDA compiler leaves loops that do much.

Before: loops are final.  After: loops of known length that index a register array say so.
"""

from __future__ import annotations

from typing import Any

from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir

from .unroll_parts import UNROLL, unroll


def plan_loops(func: Any) -> list[ir.Var]:
    """Find the variables of serial loops that index a register array."""
    accesses = [
        *((x.source, x) for x in ir.find_all(func.body, ir.TensorLoad)),
        *((x.buffer, x) for x in ir.find_all(func.body, ir.BufferStore)),
    ]
    indices = [list(x.indices) for buffer, x in accesses if str(buffer.scope()) == "local"]
    used = {var for x in indices for index in x for var in ir.find_all(index, ir.Var)}
    return [
        loop.loop_var
        for loop in ir.find_all(func.body, ir.For)
        if loop.kind == ir.ForKind.SERIAL
        and loop.loop_var in used
        and UNROLL not in loop.annotations
        and (ir.static_int(loop.extent) or 0) > 1
    ]


@prim_func_pass(opt_level=0, name="tvm_hopper.UnrollRegisters")
class UnrollRegisters:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Mark the loops of one function."""
        if not (plan := plan_loops(func)):
            return func
        after = func.with_body(unroll(func.body, plan))
        assert not plan_loops(after), "UnrollRegisters left a loop behind"
        return after
