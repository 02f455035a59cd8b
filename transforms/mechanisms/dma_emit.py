"""Emit DMA copies: one call for each run of bytes that is contiguous at both ends."""

from __future__ import annotations

from functools import partial

from tvm_hopper.codegen_patches import dma

from .bulk_emit import run_block
from .dma_plan import demand_rows, plan_dma_copies
from .mechanism import CopyMechanism, each

DMA = CopyMechanism(
    "dma",
    plan_dma_copies,
    each(partial(run_block, call=lambda _, tile, tensor, size: dma.copy(tile, tensor, size))),
    demand_rows,
)
