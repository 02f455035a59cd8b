"""A complete configuration of a row kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_hopper.schedule.memory_bound.tiles import RegisterTile

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
