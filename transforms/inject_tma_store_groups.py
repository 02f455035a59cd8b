"""TMA store fire-and-forget groups: tiles leave by bulk stores that the threads do not wait for.

    with tvm.target.Target("nvidia/nvidia-h200"):
        mod = tvm.transform.Sequential([InjectTmaStoreGroups(slots=2)])(sch.mod)

    for step in range(n):                       for step in range(n):
        tile = compute(step)                        wait_group.read 1    one store still reads
        C[...] = tile                   ->          tile[step % 2] = compute(step)
                                                    fence.proxy.async; barrier
                                                    if thread 0: store(C_map, &tile[step % 2])
                                                                 commit_group
                                                wait_group.read 0        before the block leaves

Place it before InjectBarrierPipeline where a kernel has both, with `place_waits=False`: then that
pass places all waits. docs/store_groups.md has what is
refused.
"""

from __future__ import annotations

from tvm.ir.transform import Pass

from .copies.request_copies import CopyRequest
from .inject_barrier_pipeline import WAITS
from .inject_bulk_async_copy import COPIES
from .pipeline import PlanRingBuffers
from .prepare import FuseThreadAxes
from .prepare.lower_to_opaque_blocks import stage_pass


def InjectTmaStoreGroups(
    mechanism: str = "tma", slots: int | None = None, *, place_waits: bool = True
) -> Pass:
    """Return the pass tvm_hopper.InjectTmaStoreGroups.

    Parameters
    ----------
    mechanism : str
        Of the plain copies out of shared memory that carry no `tvm_hopper.async_copy`: "tma",
        "bulk" or "auto".
    slots : int, optional
        Slots of each stored tile; one store less may be in flight while the next tile is written.
    place_waits : bool
        Whether groups, fences and waits are placed. False before InjectBarrierPipeline, which
        places those of loads and stores together.

    Raises
    ------
    LoweringError
        When it runs: no target, or a store that the mechanism cannot make.
    """
    request = CopyRequest("InjectTmaStoreGroups", mechanism, are_loads=False, slots=slots)
    steps = (*COPIES, FuseThreadAxes, PlanRingBuffers, *WAITS) if place_waits else COPIES
    return stage_pass(request.stage, steps, request)
