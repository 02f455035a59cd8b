"""Emit DMA copies: one call for each run of bytes that is contiguous at both ends."""

from __future__ import annotations

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches import dma
from tvm_hopper.requests.keys import ASYNC_OP
from tvm_hopper.transforms.common.shared_layout import plain_rows

from .dma_plan import DmaTransfer, plan_dma_copies
from .mechanism import CopyMechanism, each


def dma_block(transfer: DmaTransfer) -> ir.SBlockRealize:
    """Build the block that copies a tile, run by run."""
    copy = transfer.copy
    tile, tensor = (
        tirx.address_of(tirx.BufferLoad(end.buffer, list(end.start(transfer.inside))))
        for end in (copy.tile, copy.tensor)
    )
    stmt = ir.seq(dma.copy(tile, tensor, transfer.num_bytes))
    for loop in reversed(transfer.rest):
        stmt = ir.with_body(loop, stmt)
    return ir.opaque_block(
        copy.block.name_hint,
        stmt,
        reads=[ir.full_region(copy.src.buffer)],
        writes=[ir.full_region(copy.dst.buffer)],
        annotations={ASYNC_OP: copy.op.name},
    )


DMA = CopyMechanism(
    "dma",
    plan_dma_copies,
    each(dma_block),
    lambda copy: plain_rows(copy, "by DMA", "leave the swizzle out"),
)
