"""Record the cost model's choice for a memory-bound kernel, for `explain`.

    for bx in thread_binding(8, "blockIdx.x", annotations={"tvm_hopper.memory_bound":
        "row_reduction", "tvm_hopper.chosen": "256 threads a row, ..."})
  ->
    for bx in thread_binding(8, "blockIdx.x")                   the text is noted for `explain`

Where no access is as wide as 16 bytes, as rows of odd lengths have it, that is a fallback; not of a
kernel that reads what another one of its function leaves, as partial sums, in a width that suits.
So is a tensor that a thread of any kernel accesses element by element next to vectors of others.

Before: all passes that request the mark have run.  After: no mark is left.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.element_accesses import ElementAccess, find_element_accesses
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.requests.fallbacks import Fallback, report
from tvm_hopper.requests.keys import CHOSEN, MEMORY_BOUND
from tvm_hopper.transforms.common.explain_notes import (
    ElementsNote,
    FallbackNote,
    Note,
    RemarkNote,
    note_kernels,
)
from tvm_hopper.transforms.kernel_pass import function_pass

VECTOR_BYTES = 16  # that a thread loads or stores at once


def plan_choice(kernel: ir.For) -> RemarkNote | None:
    """Return what there is to say of a kernel, None if it is none of these."""
    if not is_memory_bound(kernel):
        return None
    notes = ir.thread_axes(kernel)["blockIdx.x"].annotations
    kind = str(notes[MEMORY_BOUND]).replace("_", " ")
    return RemarkNote(f"{kind}: {notes[CHOSEN]}" if CHOSEN in notes else kind)


def find_fallback(kernel: ir.For, own: list[ir.Var]) -> Fallback | None:
    """Return what to say of a kernel whose widest access of memory is narrow.

    `own` are arrays of the function, which one of its kernels leaves to another.
    """
    loads = [x.source for x in ir.find_all(kernel, ir.TensorLoad)]
    if any(x.same_as(y) for x in loads for y in own):
        return None
    widest = 0
    for loop in ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED):
        widest = max(widest, int(loop.extent) * _widest_element(loop))
    widest = max(widest, _widest_element(kernel))
    if widest >= VECTOR_BYTES:
        return None
    kind = str(ir.thread_axes(kernel)["blockIdx.x"].annotations[MEMORY_BOUND]).replace("_", " ")
    return Fallback(
        kind,
        f"at most {widest} bytes of a tensor are loaded or stored at once",
        f"rows of a multiple of {VECTOR_BYTES} bytes, and vectors of as many",
        "pad the rows, or leave vector= to the model",
    )


def element_fallback(access: ElementAccess) -> Fallback:
    """Return what to say of a tensor that is accessed element by element."""
    return Fallback(
        f"tensor {access.tensor}",
        f"{'stored' if access.is_store else 'loaded'} {access.num_bytes} bytes at a time, element "
        "by element",
        "elements that lie side by side as they are computed, and vectors of them",
        f"store {access.tensor} in the order in which it is accessed",
    )


def _widest_element(root: Any) -> int:
    """Return the bytes of the widest element of global memory that is accessed."""
    touched = [x.source for x in ir.find_all(root, ir.TensorLoad)]
    touched += [x.buffer for x in ir.find_all(root, ir.BufferStore)]
    outside = [x for x in touched if x.scope() in ("", "global")]
    return max((dtype_bytes(ir.dtype_of(x)) for x in outside), default=0)


def rewrite_marks(kernel: ir.For) -> Any:
    """Take the marks off the axis."""
    return ir.without_annotations(kernel, MEMORY_BOUND, CHOSEN)


def _note_choices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Note what was chosen for one function's kernels."""
    notes: dict[int, list[Note]] = {}
    own = [x for block in ir.find_all(func.body, ir.SBlock) for x in block.alloc_buffers]
    own = [x for x in own if x.scope() in ("", "global")]
    arguments = [x for x in func.params if tirx.is_buffer_var(x)]

    def note(kernel: ir.For) -> Any:
        choice = plan_choice(kernel)
        slower = find_fallback(kernel, own) if choice is not None else None
        accesses = find_element_accesses(kernel, arguments, fragments=choice is None)
        fallbacks = list(map(element_fallback, accesses))  # narrow vectors follow from these
        if slower is not None and not fallbacks:
            fallbacks = [slower]
        notes[ir.number_of(func, kernel)] = [
            *([choice] if choice is not None else []),
            *(ElementsNote(x.tensor, x.num_bytes, x.fetched) for x in accesses),
            *map(FallbackNote, report(func, fallbacks)),
        ]
        return rewrite_marks(kernel) if choice is not None else kernel

    after = ir.map_kernels(func, note)
    return note_kernels(after, notes)


RecordModelChoice = function_pass("RecordModelChoice", _note_choices)
