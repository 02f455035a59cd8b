"""Barrier-based software pipelining: ring buffers, loads that run ahead, mbarriers.

    with tvm.target.Target("nvidia/nvidia-h200"):
        mod = tvm.transform.Sequential([InjectBulkAsyncCopy(), InjectBarrierPipeline()])(sch.mod)

    for k in serial(n):     software_pipeline_stage = [0, 3], async_stages = [0]
        tile = load(k)
        use(tile)
      ->
    for k in range(3): expect_bytes(full[k]); load(k) into tile[k]
    for k in range(n):
        if k + 3 < n: expect_bytes(full[(k + 3) % 4]); load(k + 3) into tile[(k + 3) % 4]
        wait(full[k % 4], phase k // 4 % 2)
        use(tile[k % 4])

With `tvm_hopper.consumers` on the loop, a producer warp loads, and `empty` mbarriers hand the slots
back. Loops without a pipeline get one slot for each tile, and their waits. docs/barrier_pipeline.md
has what is refused.
"""

from __future__ import annotations

from tvm.ir.transform import Pass

from .copies.request_copies import CopyRequest
from .inject_bulk_async_copy import COPIES
from .mbarriers import LowerChannelsToMbarriers
from .pipeline import ExpandPipeline, PlanRingBuffers
from .prepare import FuseThreadAxes
from .prepare.lower_to_opaque_blocks import stage_pass
from .sync import InsertSyncs
from .warp_specialization import SpecializeWarps

WAITS = (InsertSyncs, LowerChannelsToMbarriers)
PIPELINE = (
    FuseThreadAxes,
    PlanRingBuffers,
    SpecializeWarps,
    ExpandPipeline,
    *WAITS,
)


def InjectBarrierPipeline() -> Pass:
    """Return the pass tvm_hopper.InjectBarrierPipeline; copies come first, or are "auto" here.

    Raises
    ------
    LoweringError
        When it runs: no target, or a pipeline that cannot be made.
    """
    request = CopyRequest("InjectBarrierPipeline", "auto", are_loads=True)
    return stage_pass(request.stage, (*COPIES, *PIPELINE), request)
