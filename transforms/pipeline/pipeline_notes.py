"""Notes for `explain` on a kernel's ring buffers and pipeline stages."""

from __future__ import annotations

from tvm_hopper.requests.keys import STAGE
from tvm_hopper.transforms.common.explain_notes import Note, RemarkNote, RingNote, StoreRingNote
from tvm_hopper.transforms.common.stage_annotations import parts_of, read_stages

from .late_stages import find_lateness
from .plan_ring_buffers_plan import KernelPlan


def pipeline_notes(plan: KernelPlan) -> list[Note]:
    """Return remarks on stages first, then the rings of loads and those of stores."""
    owners = [*(x.site.loops for x in plan.pipelines), *(x.loops for x in plan.store_rings)]
    loops = {loops[-1]: None for loops in owners if loops and STAGE in loops[-1].annotations}
    remarks = [find_lateness(loop).remark(f"loop {loop.loop_var.name}") for loop in loops]
    remarks += [read_stages(loop, parts_of(loop)).remark() for loop in loops]
    return [
        *(RemarkNote(text) for text in remarks if text is not None),
        *(
            RingNote(
                x.number,
                x.num_slots,
                x.tx_bytes,
                x.by_group,
                x.stores_in_flight,
                x.bytes_in_parts,
            )
            for x in plan.pipelines
        ),
        *(StoreRingNote(x.tile.name, x.num_slots, x.slot.num_bytes) for x in plan.store_rings),
    ]
