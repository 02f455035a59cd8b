"""What a kernel does to a row, the configurations that it may have, and the bytes in flight."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile

from .config import RowReductionConfig

BYTES_PER_CYCLE = 9.4  # that an SM's share of memory brings, while as many are stored
LULL = 0.08  # of the time nothing is loaded, with one thread block on an SM
LATENCY = 2400  # cycles from a load to its data, of a memory that is busy
BARRIER, PER_THREAD = 300, 2  # cycles of a barrier, and for each thread that comes to it
CLUSTER_BARRIER = 1500  # cycles more where a cluster waits
CLUSTERS = (1, 2, 4, 8)  # that every chip with clusters runs
REGISTERS_PER_SM = 65536
CACHE_BYTES = 50 << 20  # of L2: what fits is wanted there by whoever comes next


@dataclass(frozen=True)
class LoadedRows:
    """What a kernel over rows loads, whatever it does to them.

    Parameters
    ----------
    rows : int or None
        Rows, None if they are known at run time only.
    columns : int
        Elements of a row.
    vector : int
        Elements of the widest vector that is legal.
    loaded : int
        Bytes that are loaded for each element.
    """

    rows: int | None
    columns: int
    vector: int
    loaded: int


@dataclass(frozen=True)
class RowWork(LoadedRows):
    """What a kernel does to a row.

    Parameters
    ----------
    rows, columns, vector, loaded
        As of `LoadedRows`.
    shared : int
        Bytes for each column that all rows share.
    kept : int
        Bytes of results for each element that wait in registers.
    reductions : int
        One after another.
    again : bool
        Whether a row can be loaded again behind the last of them.
    moved : int
        Bytes that are loaded and stored for each element.
    passes : int
        Times that a kernel which streams rows loads them.
    unstaged, unshared : str
        Why rows, and what they share, cannot wait in shared memory, if they cannot.
    beside : bool
        Whether rows read values of their own, as labels, late and out of memory.
    splits : bool
        Whether thread blocks can each reduce a row and store a part of it: nothing else is stored.
    tensors : int
        How many rows share.
    moments : bool
        Whether the reductions are a mean and the squares around it: a cluster's are one exchange.
    """

    shared: int
    kept: int
    reductions: int
    again: bool = False
    moved: int = 0
    passes: int = 2
    unstaged: str = ""
    unshared: str = ""
    beside: bool = False
    splits: bool = False
    tensors: int = 0
    moments: bool = False

    @property
    def waits_late(self) -> bool:
        """Whether what is behind the last reduction waits for more than the row itself."""
        return self.shared > 0 or self.beside


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
        threads=tile.threads, rows=tile.rows, vector=tile.vector, cluster=tile.cluster
    )


def of_grid(work: RowWork, tile: RegisterTile, blocks: int) -> int:
    """Return the thread blocks of an SM; a grid that leaves SMs empty has few to wait for."""
    if work.rows is None:
        return blocks
    return min(blocks, -(-work.rows * tile.cluster // (tile.rows * DEFAULT_NUM_SMS)))


def in_flight(work: RowWork, tile: RegisterTile, blocks: int) -> int:
    """Return the bytes of rows that the thread blocks of an SM load at once."""
    return blocks * tile.rows * work.columns * work.loaded // tile.cluster


def of_flight(work: RowWork, tile: RegisterTile, blocks: int) -> float:
    """Return the bytes a cycle that this brings: after a latency, and what reductions wait."""
    threads = tile.threads * tile.rows
    barriers = work.reductions if tile.threads > THREADS_PER_WARP or tile.cluster > 1 else 0
    far = CLUSTER_BARRIER if tile.cluster > 1 else 0
    wait = barriers * (BARRIER + PER_THREAD * threads + far)
    waste = work.columns / tile.columns
    return waste * in_flight(work, tile, blocks) / (LATENCY + wait)


def wants_hint(work: RowWork) -> bool:
    """Tell whether a kernel stores rows, and moves more than L2 holds, or nobody knows how much.

    Where it only reads there is nothing for L2 to let go of first.
    """
    large = work.rows is None or work.rows * work.columns * work.moved > CACHE_BYTES
    return large and work.moved > work.loaded
