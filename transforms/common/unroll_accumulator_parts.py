"""Unroll loops over the parts of an accumulator: registers have no addresses.

Registers have no addresses: where a loop that says which part a store takes stays one, the
accumulator goes to local memory.
"""

from __future__ import annotations

from tvm_hopper import ir

UNROLL = "pragma_unroll"  # TVM's, on a loop: how often


def unroll(body: ir.Stmt, variables: list[ir.Var]) -> ir.Stmt:
    """Let the CUDA compiler unroll the loops that count parts of the accumulator."""

    def mark(loop: ir.For) -> ir.For:
        if not any(loop.loop_var.same_as(x) for x in variables) or UNROLL in loop.annotations:
            return loop
        notes = {**loop.annotations, UNROLL: int(loop.extent)}
        return ir.with_body(loop, loop.body, annotations=notes)

    return ir.replace(body, ir.For, mark)
