"""Move annotations of a bound loop back to its thread axis, and drop unit loops.

    for bx in thread_binding(8, "blockIdx.x"):
        for var in serial(1, annotations={"tvm_hopper.raster_group": 8}):
            ...
  ->
    for bx in thread_binding(8, "blockIdx.x", annotations={"tvm_hopper.raster_group": 8}):
        ...

Stock UnifyThreadBinding hoists the thread axes and leaves the annotations of a bound loop on a loop
of extent 1, further in. A loop of extent 1 without annotations says nothing at all.

Before: thread axes are unified. After: annotations of an axis are on its loop.
"""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir
from tvm_hopper.requests import keys
from tvm_hopper.transforms.kernel_pass import kernel_pass

RESTORED = (
    keys.RASTER_GROUP,
    keys.RASTER_CURVE,
    keys.PERSISTENT,
    keys.TURNS,
    keys.STREAM,
    keys.ROW_TABLE,
    keys.CHOSEN_FOR,
    keys.SHARE_LOADS,
    keys.CONFIGURATION,
    keys.MEMORY_BOUND,
    keys.CHOSEN,
    keys.BLOCKS_PER_SM,
    keys.EARLY_LAUNCH,
    keys.ROW_CLUSTER,
)
AXIS_KEYS = dict.fromkeys(RESTORED, "blockIdx.x")


def plan_notes(kernel: ir.For) -> tuple[ir.For, ...]:
    """Return the loops of extent 1 that carry an axis' annotation, or none."""
    return tuple(
        ir.find_all(
            kernel,
            ir.For,
            lambda loop: (
                loop.kind == ir.ForKind.SERIAL
                and ir.is_const(loop.extent, 1)
                and (not loop.annotations or any(key in loop.annotations for key in AXIS_KEYS))
            ),
        )
    )


def rewrite_notes(kernel: ir.For, plan: tuple[ir.For, ...]) -> ir.For:
    """Drop the loops and annotate the axes."""
    lifted: dict[str, dict[str, Any]] = {}
    for loop in plan:
        for key, tag in AXIS_KEYS.items():
            if key in loop.annotations:
                lifted.setdefault(tag, {})[key] = loop.annotations[key]

    def visit(loop: ir.For, mutator: Any) -> ir.Stmt:
        if any(loop.same_as(planned) for planned in plan):
            return ir.substitute(mutator.mutate(loop.body), {loop.loop_var: loop.min})
        loop = mutator.default_mutate(loop)
        tag = str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else ""
        notes = {**loop.annotations, **lifted.get(tag, {})}
        return ir.with_body(loop, loop.body, annotations=notes) if tag in lifted else loop

    return ir.mutate(kernel, [(ir.For, visit)])


RestoreAxisAnnotations = kernel_pass("RestoreAxisAnnotations", plan_notes, rewrite_notes)
