"""Hexagon: one thread, on-chip memory (VTCM), and a queue of DMA copies.

    "qcom/hexagon-v68"    4 MiB of VTCM
    "qcom/hexagon-v69"    8 MiB, as those after it

A target says how much VTCM its chip has (`vtcm-capacity`), which goes before the figure here.

Sources: TVM 0.27, python/tvm/backend/hexagon/target_tags.py (VTCM) and
src/backend/hexagon/runtime: hexagon_user_dma.cc (24 bits of a length), hexagon_user_dma.h and
ring_buffer.h (descriptors in flight). The instructions of user DMA came with v68 (Qualcomm's QEMU,
tag_arch_table.h: `Y6_dmstart`, `Y6_dmlink`, `Y6_dmpoll`), so that v65 and v66 have no row.
"""

from __future__ import annotations

from dataclasses import dataclass

from .arch import KIB, Processor
from .async_ops import GENERIC

MIB = 1024 * KIB


@dataclass(frozen=True)
class Hexagon(Processor):
    """A Hexagon DSP, as the `mcpu` of a hexagon target names it.

    Attributes
    ----------
    vtcm_bytes
        Bytes of its vector memory.
    max_copy_bytes
        The most that one DMA copy moves: its descriptor has 24 bits for the length.
    max_copies_in_flight
        Descriptors of TVM's runtime. It counts a copy that finds none of them free more than once,
        and later waits by a wrong number.
    """

    vtcm_bytes: int
    max_copy_bytes: int = (1 << 24) - 1
    max_copies_in_flight: int = 100

    @property
    def tile_bytes(self) -> int:
        """Bytes of VTCM that the tiles of one function may have."""
        return self.vtcm_bytes


HEXAGONS = {
    name: Hexagon(name, async_ops=("dma_load",), proxies=(GENERIC,), vtcm_bytes=mib * MIB)
    for name, mib in {
        "hexagonv68": 4,
        "hexagonv69": 8,
        "hexagonv73": 8,
        "hexagonv75": 8,
    }.items()
}  # by the `mcpu` of a hexagon target
