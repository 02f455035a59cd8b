"""Emit DMA copies: one call for each run of bytes that is contiguous at both ends."""

from __future__ import annotations

from functools import partial

from tvm_hopper.codegen_patches import dma
from tvm_hopper.transforms.common.shared_layout import plain_rows

from .bulk_emit import run_block
from .dma_plan import plan_dma_copies
from .mechanism import CopyMechanism, each

DMA = CopyMechanism(
    "dma",
    plan_dma_copies,
    each(partial(run_block, call=lambda _, tile, tensor, size: dma.copy(tile, tensor, size))),
    lambda copy: plain_rows(copy, "by DMA", "leave the swizzle out"),
)
