"""Note for how many rows and with which configuration a kernel was made, and drop what says so.

    for bx in thread_binding(64, "blockIdx.x", annotations={"tvm_hopper.chosen_for": [64, 203]}):
  ->
    for bx in thread_binding(64, "blockIdx.x"):                  64 rows, 20.3 us: noted

Before: what is asked of an axis stands on it.  After: no `chosen_for` or `configuration` is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.plan.notes import ConfigurationNote, Note, RowsNote, note_kernels
from tvm_hopper.requests.keys import CHOSEN_FOR, CONFIGURATION

NOTED: dict[str, Callable[[Any], Note]] = {
    CHOSEN_FOR: lambda value: RowsNote(*map(int, value)),
    CONFIGURATION: lambda value: ConfigurationNote(str(value)),
}


def plan_rows(kernel: ir.For) -> tuple[Note, ...]:
    """Read the annotations."""
    axis = ir.thread_axes(kernel).get("blockIdx.x")
    found = axis.annotations if axis is not None else {}
    return tuple(make(found[key]) for key, make in NOTED.items() if key in found)


def rewrite_rows(kernel: ir.For) -> Any:
    """Take the annotations off their axis."""

    def without(loop: ir.For) -> ir.For:
        rest = {k: v for k, v in loop.annotations.items() if k not in NOTED}
        if len(rest) == len(loop.annotations):
            return loop
        return ir.with_body(loop, loop.body, annotations=rest)

    return ir.replace(kernel, ir.For, without)


@prim_func_pass(opt_level=0, name="tvm_hopper.NoteRows")
class NoteRows:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Note what one function's kernels were chosen for."""
        notes = {}

        def note(kernel: ir.For) -> Any:
            if not (plan := plan_rows(kernel)):
                return kernel
            notes[ir.number_of(func, kernel)] = plan
            after = rewrite_rows(kernel)
            assert not plan_rows(after), "NoteRows left an annotation behind"
            return after

        return note_kernels(ir.map_kernels(func, note), notes)
