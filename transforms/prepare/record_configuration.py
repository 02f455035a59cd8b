"""Record the chosen configuration and its range of rows, for `explain`.

    for bx in thread_binding(64, "blockIdx.x", annotations={"tvm_hopper.chosen_for": [64, 203]}):
  ->
    for bx in thread_binding(64, "blockIdx.x"):                  64 rows, 20.3 us: noted

Before: annotations of an axis are on its loop. After: no `chosen_for` or `configuration` is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm_hopper import ir
from tvm_hopper.requests.keys import CHOSEN_FOR, CONFIGURATION
from tvm_hopper.transforms.common.explain_notes import ConfigurationNote, Note, RowsNote
from tvm_hopper.transforms.kernel_pass import kernel_pass

NOTED: dict[str, Callable[[Any], Note]] = {
    CHOSEN_FOR: lambda value: RowsNote(*map(int, value)),
    CONFIGURATION: lambda value: ConfigurationNote(str(value)),
}


def plan_rows(kernel: ir.For) -> tuple[Note, ...]:
    """Read the annotations."""
    axis = ir.thread_axes(kernel).get("blockIdx.x")
    found = axis.annotations if axis is not None else {}
    return tuple(make(found[key]) for key, make in NOTED.items() if key in found)


RecordConfiguration = kernel_pass(
    "RecordConfiguration",
    plan_rows,
    lambda kernel, _: ir.without_annotations(kernel, *NOTED),
    notes=lambda plan: plan,
)
