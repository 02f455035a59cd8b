"""Measure coalescing: how far apart the stores of neighbouring threads are.

    B[tx, i] = a[tx, i]          rows of 256 bytes: each thread writes to a sector of its own

A warp's store takes one cache cycle for each sector that it writes to. Where each thread has
one, a warp takes 32 cycles for what one could hold; copies of such rows, which threads read and
wrote element by element, are better made whole.
"""

from __future__ import annotations

from tvm_hopper import ir
from tvm_hopper.analysis.access import step_of, strides_bytes
from tvm_hopper.facts.programming_model import SECTOR_BYTES
from tvm_hopper.requests.keys import BY_OPTION
from tvm_hopper.transforms.common.copy_nests import CopyNest, fills_tile

SIDE_BY_SIDE = f"by hardware: less than {SECTOR_BYTES} bytes lie between what its threads store"
UNDER_A_CONDITION = "by hardware: it stands under a condition, which threads may disagree about"


def reason_against(kernel: ir.For, copy: CopyNest) -> str | None:
    """Return why an offered copy stays with the threads as it is scheduled, None if it need not.

    - `kernel`: the kernel around the copy.
    - `copy`: a copy out of shared memory that no schedule has asked to be asynchronous.
    """
    conditions = ir.find_all(kernel, ir.IfThenElse)
    blocks = ir.find_all(kernel, ir.SBlockRealize, lambda x: not ir.is_const(x.predicate, 1))
    if any(ir.uses_node(x, copy.nest) for x in (*conditions, *blocks) if not x.same_as(copy.nest)):
        return UNDER_A_CONDITION
    return None if are_apart(kernel, copy) else SIDE_BY_SIDE


def is_offered(copy: CopyNest) -> bool:
    """Tell whether a copy out of shared memory has no request for a mechanism."""
    return BY_OPTION in copy.realize.block.annotations and not fills_tile(copy)


def are_apart(kernel: ir.For, copy: CopyNest) -> bool:
    """Tell whether each of a kernel's neighboring threads stores to sectors of its own.

    - `kernel`: the kernel around the copy.
    - `copy`: a copy out of shared memory, which may be bound to threads.
    - returns: False where that is not known, and where the copy is not distributed to threads.
    """
    store = copy.realize.block.body
    axis = ir.thread_axes(kernel).get("threadIdx.x")
    if axis is None or not isinstance(store, ir.BufferStore):
        return False
    place = sum(
        index * stride
        for index, stride in zip(store.indices, strides_bytes(store.buffer), strict=True)
    )
    step = step_of(place, axis.loop_var)
    return step is not None and abs(step) >= SECTOR_BYTES
