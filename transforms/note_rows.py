"""Note for how many rows a kernel was chosen, and drop the annotation that says so.

    for bx in thread_binding(64, "blockIdx.x", annotations={"tvm_hopper.chosen_for": [64, 203]}):
  ->
    for bx in thread_binding(64, "blockIdx.x"):                  64 rows, 20.3 us: noted

Before: what is asked of an axis stands on it.  After: no `chosen_for` is left.
"""

from __future__ import annotations

from typing import Any

from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.plan.notes import RowsNote, note_kernels
from tvm_hopper.requests.keys import CHOSEN_FOR


def plan_rows(kernel: ir.For) -> RowsNote | None:
    """Read the annotation; None without one."""
    axis = ir.thread_axes(kernel).get("blockIdx.x")
    if axis is None or CHOSEN_FOR not in axis.annotations:
        return None
    return RowsNote(*map(int, axis.annotations[CHOSEN_FOR]))


def rewrite_rows(kernel: ir.For) -> Any:
    """Take the annotation off its axis."""

    def without(loop: ir.For) -> ir.For:
        if CHOSEN_FOR not in loop.annotations:
            return loop
        rest = {k: v for k, v in loop.annotations.items() if k != CHOSEN_FOR}
        return ir.with_body(loop, loop.body, annotations=rest)

    return ir.replace(kernel, ir.For, without)


@prim_func_pass(opt_level=0, name="tvm_hopper.NoteRows")
class NoteRows:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Note what one function's kernels were chosen for."""
        notes = {}

        def note(kernel: ir.For) -> Any:
            if (plan := plan_rows(kernel)) is None:
                return kernel
            notes[ir.number_of(func, kernel)] = [plan]
            after = rewrite_rows(kernel)
            assert plan_rows(after) is None, "NoteRows left an annotation behind"
            return after

        return note_kernels(ir.map_kernels(func, note), notes)
