"""All copy mechanisms, by name, those first that a request for "auto" tries first."""

from __future__ import annotations

from tvm_hopper.transforms.common.transfer import Transfer

from .bulk_emit import BULK
from .cp_async_emit import CP_ASYNC
from .dma_emit import DMA
from .mechanism import CopyMechanism
from .tma_emit import TMA

MECHANISMS = {x.name: x for x in (TMA, BULK, CP_ASYNC, DMA)}
INSTRUCTIONS = {name: load for x in MECHANISMS.values() for name, load in x.instructions.items()}


def mechanism_of(copy: Transfer) -> CopyMechanism:
    """Return the mechanism that a copy requests."""
    return MECHANISMS[str(copy.op.mechanism)]
