"""A complete configuration of a row kernel, and what goes with it in the grid."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile
from tvm_hopper.schedule.memory_bound.work import RowWork

from .config import RowReductionConfig

CLUSTERS = (1, 2, 4, 8)  # that every chip with clusters runs


@dataclass(frozen=True)
class RowChoice:
    """A configuration with nothing left open, what it amounts to, and what came after it."""

    tile: RegisterTile
    preload: bool
    recompute: bool
    reload: bool
    blocks: int  # of an SM
    hint: bool
    rate: float  # bytes a cycle
    text: str = ""
    is_streamed: bool = False
    stage: bool = False
    # As many thread blocks as a thread has vectors reduce a row, each stores one.
    split: bool = False
    early_launch: bool = False

    @property
    def config(self) -> RowReductionConfig:
        """The same as a request: a schedule with it is this one."""
        return replace(
            config_of(self.tile),
            preload=self.preload,
            recompute=self.recompute,
            reload=None if self.split else self.reload,
            blocks=self.blocks,
            hint=self.hint,
            chunks=self.tile.chunks if self.is_streamed or self.stage else None,
            stage=self.stage,
            early_launch=self.early_launch,
        )


def config_of(tile: RegisterTile) -> RowReductionConfig:
    """Return a tile as a request that leaves the rest open."""
    return RowReductionConfig(
        threads=tile.threads,
        rows=tile.rows,
        vector=tile.vector,
        cluster=tile.cluster,
        unroll=tile.unroll if tile.unroll > 1 else None,
    )


# -- rows that exceed L2
# Stores by a policy stay where they are written. Of rows in registers of a cluster that meet two
# tensors the assembler loads those late then: LayerNorm of 32768 columns in float32 at 0.982 of a
# copy instead of 0.995. A gradient of cross-entropy, which reads labels, fell from 0.950 to 0.903.
MIN_TENSORS_FOR_STORE_HINT = 2
PAIR = 2  # thread blocks that begin together
MIN_BYTES_PER_PAIRED_BLOCK = 8 << 10  # of its rows: with less, pairs do not begin fast enough


def keeps_end(work: RowWork, choice: RowChoice) -> bool:
    """Tell whether the end of what is stored is to stay in L2, if that is little of all."""
    meets_late = (
        choice.tile.cluster > 1 and not choice.stage and work.tensors >= MIN_TENSORS_FOR_STORE_HINT
    )
    return choice.hint and not work.beside and not meets_late


def begin_together(
    work: RowWork, choice: RowChoice, blocks: int | None, given: RowReductionConfig
) -> int:
    """Return how many neighbouring thread blocks begin together.

    - `blocks`: thread blocks of the grid; None: known at run time only.
    - raises ScheduleError: they are to, and share rows, as a cluster that works together.
    """
    tile = choice.tile
    if (given.together or 1) > 1 and tile.cluster > 1:
        found = f"together={given.together} for rows of {tile.cluster} thread blocks of a cluster"
        raise cannot_schedule("RowReductionConfig", found, "one of the two", "give cluster=1")
    if given.together is not None:
        return given.together
    loaded = work.loaded * work.columns * tile.rows
    in_pairs = blocks is not None and blocks % PAIR == 0 and loaded >= MIN_BYTES_PER_PAIRED_BLOCK
    return PAIR if choice.hint and not work.beside and tile.cluster == 1 and in_pairs else 1
