"""Emit bulk copies (`cp.async.bulk`): one instruction for each contiguous run of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir as tvm_ir, tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import bulk
from tvm_hopper.facts.reductions import bulk_suffix
from tvm_hopper.requests.keys import BULK_LOAD
from tvm_hopper.transforms.common.shared_layout import plain_rows
from tvm_hopper.transforms.common.transfer import Transfer, load_call, operation_notes

from .bulk_plan import BulkTransfer, plan_bulk_copies
from .mechanism import CopyMechanism, each


def _call(copy: Transfer, tile: Any, tensor: Any, size: Any) -> Any:
    """Return the copy of one run."""
    if copy.fills_shared:
        return tirx.call_extern("int32", load_call(copy, BULK_LOAD), tile, tensor, size)
    if copy.reduce:
        return bulk.reduce(
            tensor, tile, size, bulk_suffix(copy.reduce, ir.dtype_of(copy.dst.buffer))
        )
    return bulk.store(tensor, tile, size)


def run_block(transfer: BulkTransfer, call: Callable[..., Any] = _call) -> ir.SBlockRealize:
    """Build the block that copies a tile, run by run."""
    copy = transfer.copy
    tile, tensor = (
        tirx.address_of(tirx.BufferLoad(end.buffer, list(end.start(transfer.inside))))
        for end in (copy.tile, copy.tensor)
    )
    size = transfer.run_bytes
    stmt = ir.seq(call(copy, tile, tensor, size))
    if not isinstance(size, int):  # nothing may be left of it
        stmt = ir.IfThenElse(size > 0, stmt, None)
    for loop in reversed(transfer.rest):
        count = transfer.counts[loop]
        extent = ir.cast_like(count, loop.loop_var)
        stmt = ir.For(loop.loop_var, loop.min, extent, ir.ForKind.SERIAL, stmt)
    whole = ir.full_region(copy.dst.buffer)
    filled = [tvm_ir.Range.from_min_extent(0, count) for count in transfer.tile_counts()]
    return ir.opaque_block(
        copy.block.name_hint,
        stmt,
        reads=[ir.full_region(copy.src.buffer)],
        writes=[tirx.BufferRegion(copy.dst.buffer, filled) if copy.fills_shared else whole],
        annotations=operation_notes(copy),
    )


BULK = CopyMechanism(
    "bulk",
    plan_bulk_copies,
    each(run_block),
    lambda copy: plain_rows(copy, "in bulk", 'take "tma", or leave the swizzle out'),
    instructions={BULK_LOAD: bulk.load},
)
