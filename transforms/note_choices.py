"""Note what a model chose for a kernel that is bound by memory, and drop the kernel's mark.

    for bx in thread_binding(8, "blockIdx.x", annotations={"tvm_hopper.memory_bound":
        "row_reduction", "tvm_hopper.chosen": "256 threads a row, ..."})
  ->
    for bx in thread_binding(8, "blockIdx.x")                   the text is noted for `explain`

Before: all passes that ask for the mark have run.  After: no mark is left.
"""

from __future__ import annotations

from typing import Any

from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.plan.notes import RemarkNote, note_kernels
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.keys import CHOSEN, MEMORY_BOUND


def plan_choice(kernel: ir.For) -> RemarkNote | None:
    """Return what there is to say of a kernel, None if it is none of these."""
    if not is_memory_bound(kernel):
        return None
    notes = ir.thread_axes(kernel)["blockIdx.x"].annotations
    kind = str(notes[MEMORY_BOUND]).replace("_", " ")
    return RemarkNote(f"{kind}: {notes[CHOSEN]}" if CHOSEN in notes else kind)


def rewrite_marks(kernel: ir.For) -> Any:
    """Take the marks off the axis."""

    def plain(loop: ir.For) -> ir.For:
        if MEMORY_BOUND not in loop.annotations:
            return loop
        rest = {k: v for k, v in loop.annotations.items() if k not in (MEMORY_BOUND, CHOSEN)}
        return ir.with_body(loop, loop.body, annotations=rest)

    return ir.replace(kernel, ir.For, plain)


@prim_func_pass(opt_level=0, name="tvm_hopper.NoteChoices")
class NoteChoices:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Note what was chosen for one function's kernels."""
        notes = {}

        def note(kernel: ir.For) -> Any:
            if (choice := plan_choice(kernel)) is None:
                return kernel
            notes[ir.number_of(func, kernel)] = [choice]
            return rewrite_marks(kernel)

        after = ir.map_kernels(func, note)
        return note_kernels(after, notes)
