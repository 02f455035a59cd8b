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
from tvm_hopper.schedule.arguments import check_type, set_ints

MOST_CHUNKS = 16  # vectors of a thread: their registers are few
FEW_CHUNKS = 8  # of them that a thread of a row has in flight at most by default
MOST_VECTOR = 16  # elements of a vector: 16 bytes of the narrowest type
THREADS_PER_SM = 2048
MOST_BLOCKS = 1 << 16  # of a grid whose thread blocks each leave sums of columns


@dataclass(frozen=True)
class RowReductionConfig:
    """One way to compute reductions of rows; what is left out is chosen from the shape.

    Parameters
    ----------
    threads : int, optional
        Threads that share a row: 1, 2, 4, 8, 16, or a multiple of 32 up to 1024.
    rows : int, optional
        Rows of a thread block, each with threads of its own.
    vector : int, optional
        Elements that a thread loads and stores at once: a power of two up to 16, and at most 16
        bytes of the widest tensor.
    preload : bool, optional
        Whether tensors that all rows share are loaded before the reductions, together with the row,
        and wait in registers, or where rows are staged in shared memory; else where they are used.
    recompute : bool, optional
        Whether what is expensive and used twice, as the exponentials of a softmax, is computed
        again; else it waits in registers.
    reload : bool, optional
        Whether a row is loaded a second time, out of the caches, where it is used after the last
        reduction; else it waits in registers. What is expensive is computed again then. In
        persistent clusters with staged rows and no sums of columns the next row is reduced in
        between.
    blocks : int, optional
        Thread blocks that are to share an SM: the assembler takes no more registers than that.
    hint : bool, optional
        Whether the caches are told to give up last what is loaded of a row.
    chunks : int, optional
        Vectors of a thread that are in flight together. A row of more is streamed: each reduction,
        and what is after the last one, loads it for itself, a part after another.
    cluster : int, optional
        Thread blocks that share a row, each with a part of it: 1, 2, 4, 8 or 16. They are a
        cluster, and send each other what they have reduced.
    stage : bool, optional
        Whether bulk copies bring a row to shared memory, where it waits for each of its passes;
        `chunks` vectors of a thread are loaded from there together.
    persistent : int, optional
        Thread blocks that share all rows, where columns are summed next to them, or where rows
        share a tensor, which stays in registers; or clusters of them.
    ahead : int, optional
        Rows of each by which memory is asked in advance, in those cases; 0 for none, up to 8.
    early_launch : bool, optional
        Whether the kernel begins while the launch before it ends, and waits for it first.
    together : int, optional
        Neighbouring thread blocks that begin at the same time, up to 8; 1: each by itself. They
        share nothing: not for rows that clusters share, nor for persistent kernels.

    Raises
    ------
    ScheduleError
        A value is illegal, or the threads of a thread block are no whole warps or above 1024.
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
        }
        set_ints(self, where, bounds)
        threads, rows, cluster, blocks = self.threads, self.rows, self.cluster, self.blocks
        for name in ("preload", "recompute", "reload", "hint", "stage", "early_launch"):
            check_type(where, name, getattr(self, name), bool, "a bool")
        for name, value in (("vector", self.vector), ("cluster", cluster)):
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
