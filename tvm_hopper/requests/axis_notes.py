"""Keep annotations of bound loops through TVM's UnifyThreadBinding, on separate loops.

    for j in thread_binding(8, "blockIdx.x", annotations={"tvm_hopper.persistent": 3}):
        for k in serial(4, annotations={"software_pipeline_stage": [0, 2]}): ...
  ->
    for j in thread_binding(8, "blockIdx.x", annotations={"tvm_hopper.persistent": 3}):
        for j_note in serial(1):
            for k in serial(4, annotations={"software_pipeline_stage": [0, 2]}): ...

That pass hoists the axes and moves the annotations of a bound loop to the loop directly inside it,
replacing that loop's own; only where no loop is there it makes one of one iteration.
RestoreAxisAnnotations takes the annotations back from a loop of one iteration.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir

from .keys import PREFIX


def set_notes_apart(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Put a loop of one iteration inside of bound loops whose notes another loop would get."""

    def visit(loop: ir.For, mutator: Any) -> ir.For:
        loop = mutator.default_mutate(loop)
        ours = any(str(key).startswith(PREFIX) for key in loop.annotations)
        if loop.kind != ir.ForKind.THREAD_BINDING or not ours or not _leaves_a_loop(loop.body):
            return loop
        note = ir.Var(f"{loop.loop_var.name}_note", ir.dtype_of(loop.loop_var))
        zero, one_value = (tirx.IntImm(ir.dtype_of(note), x) for x in (0, 1))
        return ir.with_body(loop, ir.For(note, zero, one_value, ir.ForKind.SERIAL, loop.body))

    body = ir.mutate(func.body, [(ir.For, visit)])
    return func if body.same_as(func.body) else func.with_body(body)


def _leaves_a_loop(body: ir.Stmt) -> bool:
    """Tell whether a statement is a loop once the bound ones around it are gone."""
    while isinstance(body, ir.For) and body.kind == ir.ForKind.THREAD_BINDING:
        if body.annotations:
            return True
        body = body.body
    return isinstance(body, ir.For)
