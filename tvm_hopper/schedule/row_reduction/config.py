"""`RowReductionConfig`: threads per row, vectors, rows per thread block."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.requests.keys import (
    MOST_BLOCKS_PER_SM,
    MOST_LAUNCHED_TOGETHER,
    MOST_ROW_CLUSTER,
    MOST_TURNS_AHEAD,
)
from tvm_hopper.schedule.given_fields import GivenFields

MOST_CHUNKS = 16  # vectors of a thread: their registers are few
FEW_CHUNKS = 8  # of them that a thread of a row has in flight at most by default
MOST_UNROLL = 4  # rows of a thread
MOST_VECTOR = 16  # elements of a vector: 16 bytes of the narrowest type
THREADS_PER_SM = 2048
MOST_BLOCKS = 1 << 16  # of a grid whose thread blocks each leave sums of columns


@dataclass(frozen=True, repr=False)
class RowReductionConfig(GivenFields):
    """Configuration of a row reduction; fields left out are chosen from the shape.

    Parameters
    ----------
    threads : int, optional
        Threads that share a row: 1, 2, 4, 8, 16, or a multiple of 32 up to 1024.
    rows : int, optional
        Rows of a thread block, each with separate threads.
    vector : int, optional
        Elements of a vector access: a power of two up to 16, at most 16 bytes of the widest tensor.
    preload : bool, optional
        Whether tensors that all rows share are loaded together with the row, before the reductions,
        and kept in registers (in shared memory for staged rows); else they are loaded at their use.
    recompute : bool, optional
        Whether expensive values with two uses, as the exponentials of a softmax, are computed
        twice; else they are kept in registers.
    reload : bool, optional
        Whether a row is loaded again, from the caches, after the last reduction; else it is kept in
        registers. Expensive values are computed again, too. Persistent clusters with staged rows
        and no column sums reduce the next row in between.
    blocks : int, optional
        Occupancy: thread blocks per SM; the assembler limits registers accordingly.
    hint : bool, optional
        Whether the caches evict the loaded rows last.
    chunks : int, optional
        Vectors that a thread has in flight. Longer rows are streamed: each reduction, and the
        epilogue, loads the row again, part by part.
    cluster : int, optional
        Thread blocks of a cluster that share a row: 1, 2, 4, 8 or 16. They exchange partial
        results.
    stage : bool, optional
        Whether bulk copies stage a row in shared memory for all of its passes; a thread loads
        `chunks` vectors at once from there.
    persistent : int, optional
        Thread blocks (or clusters) of a persistent kernel over all rows, if columns are summed
        too, or if rows share a tensor, which is kept in registers.
    ahead : int, optional
        Rows that a persistent kernel prefetches ahead, 0 to 8.
    early_launch : bool, optional
        Whether to use programmatic dependent launch: start early, then wait.
    unroll : int, optional
        Rows that a thread loads together, where at most a warp shares a row: 1, 2 or 4. Not for
        rows that are staged or streamed, nor for persistent kernels.
    together : int, optional
        Neighbouring thread blocks that start together, up to 8, as a cluster that shares no data;
        1: no cluster. Not for rows that clusters share, nor for persistent kernels.

    Raises
    ------
    ScheduleError
        A value is illegal, or a thread block's threads are not whole warps or exceed 1024.
    """

    threads: int | None = None
    rows: int | None = None
    vector: int | None = None
    preload: bool | None = None
    recompute: bool | None = None
    reload: bool | None = None
    blocks: int | None = None
    hint: bool | None = None
    chunks: int | None = None
    cluster: int | None = None
    stage: bool | None = None
    persistent: int | None = None
    ahead: int | None = None
    early_launch: bool | None = None
    together: int | None = None
    unroll: int | None = None

    def __post_init__(self) -> None:
        where = "RowReductionConfig"
        bounds = {
            "threads": (1, MAX_THREADS),
            "rows": (1, MAX_THREADS),
            "chunks": (1, MOST_CHUNKS),
            "cluster": (1, MOST_ROW_CLUSTER),
            "vector": (1, MOST_VECTOR),
            "persistent": (1, MOST_BLOCKS),
            "ahead": (0, MOST_TURNS_AHEAD),
            "blocks": (1, MOST_BLOCKS_PER_SM),
            "together": (1, MOST_LAUNCHED_TOGETHER),
            "unroll": (1, MOST_UNROLL),
        }
        self.set_ints(where, bounds)
        threads, rows, cluster, blocks = self.threads, self.rows, self.cluster, self.blocks
        flags = ("preload", "recompute", "reload", "hint", "stage", "early_launch")
        self.check_flags(where, *flags)
        for name, value in (("vector", self.vector), ("cluster", cluster), ("unroll", self.unroll)):
            if value is not None and value & (value - 1):
                raise cannot_schedule(where, f"{name}={value}", "a power of two")
        if threads is not None and not is_row(threads):
            need = f"a power of two, or a multiple of {THREADS_PER_WARP}"
            raise cannot_schedule(where, f"threads={threads}", need)
        if threads is not None and rows is not None and not fits_block(threads, rows):
            found = f"{threads} x {rows} = {threads * rows} threads of a thread block"
            need = f"a multiple of {THREADS_PER_WARP}, at most {MAX_THREADS}"
            raise cannot_schedule(where, found, need)
        if threads is not None and (cluster or 1) > 1 and threads % THREADS_PER_WARP:
            found = f"threads={threads} of each of the {cluster} thread blocks that share a row"
            raise cannot_schedule(where, found, f"a multiple of {THREADS_PER_WARP}")
        if (threads or 1) * (rows or 1) * (blocks or 1) > THREADS_PER_SM:
            found = f"blocks={blocks} thread blocks of {(threads or 1) * (rows or 1)} threads"
            raise cannot_schedule(where, found, f"at most {THREADS_PER_SM} threads of an SM")

    @property
    def is_open(self) -> bool:
        """Whether how rows are cut up is left to the model."""
        return replace(self, early_launch=None) == RowReductionConfig()


def is_row(threads: int) -> bool:
    """Tell whether so many threads can reduce a row: whole warps, or an equal part of one."""
    if threads < THREADS_PER_WARP:
        return threads & (threads - 1) == 0
    return threads % THREADS_PER_WARP == 0


def fits_block(threads: int, rows: int) -> bool:
    """Tell whether the rows of a thread block are whole warps, and not too many."""
    return threads * rows <= MAX_THREADS and threads * rows % THREADS_PER_WARP == 0


def of_partial(vector: int, parts: int) -> RowReductionConfig:
    """Return how so many partial sums are combined that lie in groups of so many columns.

    A thread block has the columns of whole groups, of which a thread loads one: what it leaves of a
    sector of memory another one takes. Where there are many parts, each row gets more threads, but
    one thread block: clusters took no less time, and what one column has left lies apart in memory,
    where no bulk copy takes it.
    """
    rows = vector if parts >= THREADS_PER_WARP else 1
    while rows > 1 and MAX_THREADS // rows * FEW_CHUNKS < parts:
        rows //= 2
    return RowReductionConfig(vector=1, rows=rows if rows > 1 else None, cluster=1, stage=False)
