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

from tvm_hopper import ir
from tvm_hopper.transforms.common.unroll_accumulator_parts import UNROLL, unroll
from tvm_hopper.transforms.kernel_pass import planned_pass


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


UnrollRegisterLoops = planned_pass(
    "UnrollRegisterLoops", plan_loops, lambda func, plan: func.with_body(unroll(func.body, plan))
)
