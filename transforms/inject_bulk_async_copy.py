"""Bulk asynchronous copies: plain copies into shared memory become TMA, bulk copies or cp.async.

    with tvm.target.Target("nvidia/nvidia-h200"):
        mod = tvm.transform.Sequential([InjectBulkAsyncCopy()])(sch.mod)

    for i, j in grid(8, 128):                       A_map = cuTensorMapEncodeTiled(A, box 128 x 8)
        tile[i, j] = A[m + i, n + j]        ->      with sblock(async_op="tma_load"):
                                                        tma_load(&tile[0, 0], A_map, n, m)

The operation is complete before the next use of its tile. Nothing waits yet: InjectBarrierPipeline
places the waits, or `tvm.compile` does. docs/bulk_async_copies.md has what is refused.
"""

from __future__ import annotations

from tvm.ir.transform import Pass

from .copies import LowerAsyncCopies, SelectCopyMechanisms
from .copies.request_copies import CopyRequest
from .layouts import SwizzleSharedTiles
from .prepare.lower_to_opaque_blocks import stage_pass

COPIES = (SelectCopyMechanisms, SwizzleSharedTiles, LowerAsyncCopies)


def InjectBulkAsyncCopy(mechanism: str = "auto") -> Pass:
    """Return the pass tvm_hopper.InjectBulkAsyncCopy.

    Parameters
    ----------
    mechanism : str
        Of the plain copies into shared memory that carry no `tvm_hopper.async_copy`: "auto",
        "tma", "bulk", "cp_async", or "none", which leaves them to the threads.

    Raises
    ------
    LoweringError
        When it runs: no target, or a copy that its mechanism cannot make.
    """
    request = CopyRequest("InjectBulkAsyncCopy", mechanism, are_loads=True)
    return stage_pass(request.stage, COPIES, request)
