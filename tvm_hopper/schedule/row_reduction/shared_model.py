"""Choose persistent kernels for long rows that share tensors.

Otherwise each row would read at least as many shared bytes from L2 as its own. Clusters that stay
read it once; a thread has the same columns of each row, and bulk copies bring the rows ahead. Rows
that share at most their own size are staged in shared memory, two rows next to the shared tensors,
if they fit (`staged_model.py`).
"""

from __future__ import annotations

from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.schedule.memory_bound.estimate import has_clusters, model_of_target
from tvm_hopper.schedule.memory_bound.work import RowWork

from .choice import CLUSTERS
from .config import RowReductionConfig
from .occupancy import REGISTERS_PER_SM

LEAST_COLUMNS = 1 << 16  # of a row: shorter ones share with rows next to them in shared memory
SIZES = (4, 8, 16)  # thread blocks of a cluster: the fewest that have room for a row
PART, WHOLE_PART = 40 << 10, 32 << 10  # bytes of it in each of them: at most, in full iterations
THREADS = (512, 384, 256)  # of a thread block: the most that have whole vectors
# Rows on their way to shared memory, next to the one that is reduced and those that were; more
# where eight thread blocks have parts that leave room for them.
AHEAD, MORE_AHEAD, MORE_FOR = 2, 3, 8
# The same of rows that share no more than they have, from so many bytes of a row on.
FEW_SHARED, FEW_PART, FEW_AHEAD, FEW_CHUNKS = 288 << 10, 56 << 10, 1, 8
MAX_PART_BYTES_LARGEST_CLUSTERS = 64 << 10  # of those, in the largest clusters
MAX_PIPELINED_PART_BYTES = 48 << 10  # of a pipelined row loop: what four slots have space for
BASE_REGISTERS = 40  # of a thread, next to its part of a row and of what rows share
MIN_ROWS_PER_CLUSTER = 8  # from here on what rows share is worth its registers


def keep_shared(work: RowWork, given: RowReductionConfig) -> RowReductionConfig | None:
    """Return the persistent kernel for long rows that share tensors; None for others.

    - `given`: what is decided already: a user who says how rows are cut up gets that.
    """
    dealt = _deal_out(work)
    if work.columns < LEAST_COLUMNS or dealt is None:
        return None
    cluster, threads = dealt
    part = work.columns * work.loaded // cluster
    many = cluster == MORE_FOR and part <= WHOLE_PART
    # Short iterations mostly wait for their cluster: the next row is reduced meanwhile.
    skewed, ahead = cluster > CLUSTERS[-1] or part < WHOLE_PART, MORE_AHEAD if many else AHEAD
    if _shares_few(work):
        skewed, ahead = part <= MAX_PIPELINED_PART_BYTES, FEW_AHEAD
    held = work.columns // (cluster * threads) * (work.loaded + work.shared) // 4
    if (
        not takes_clusters(given)
        or not work.shared
        or (_shares_few(work) and work.columns * work.loaded <= FEW_SHARED)
        or (held + BASE_REGISTERS) * threads > REGISTERS_PER_SM
        or work.kept
        or work.beside
        or work.unstaged
    ):
        return None
    model = model_of_target()
    count = model.chip.clusters(cluster)
    if work.rows is None or not model.chip.holds_clusters(cluster):
        return None
    if model.has_few(work.rows) if _shares_few(work) else work.rows < MIN_ROWS_PER_CLUSTER * count:
        return None  # staged by the rule of `choose_rows`
    return RowReductionConfig(
        threads=threads,
        rows=1,
        cluster=cluster,
        stage=True,
        reload=skewed,
        ahead=ahead,
        persistent=count,
    )


def takes_clusters(given: RowReductionConfig) -> bool:
    """Tell whether clusters may be chosen: the rest is open, and the chip has them."""
    return given.is_open and not given.early_launch and has_clusters()


def _shares_few(work: RowWork) -> bool:
    return work.shared <= work.loaded


def _deal_out(work: RowWork) -> tuple[int, int] | None:
    """Return the thread blocks of a cluster and their threads, if those have whole vectors."""
    few = _shares_few(work)
    for cluster in SIZES:
        most = (
            PART
            if not few
            else FEW_PART
            if cluster < SIZES[-1]
            else MAX_PART_BYTES_LARGEST_CLUSTERS
        )
        if work.columns * work.loaded > cluster * most:
            continue
        wanted = work.columns // (cluster * work.vector * FEW_CHUNKS)
        first = (wanted,) if few and wanted <= THREADS[0] and not wanted % THREADS_PER_WARP else ()
        for threads in (*first, *THREADS):
            if threads and work.columns % (cluster * threads * work.vector) == 0:
                return cluster, threads
    return None


# -- estimates of clusters that hold long rows in registers
# Rows of which elements are computed, stored and read again (a residual's sum before its norm) have
# no place in shared memory. The fewest thread blocks that can hold a row share it, each thread has
# four vectors of each tensor, and the assembler gets the number of thread blocks per SM: left alone
# it takes registers for a row in float32 next to its 16 bits, and half as many fit.


HELD_PART = 80 << 10  # bytes of it in each of a cluster's thread blocks, at most
HELD_SIZES = (4, 8, 16)  # thread blocks of a cluster: the fewest that have room for a row
CHUNKS = (4, 5)  # vectors of a thread, of each tensor: the first that leaves whole warps
MAX_THREADS_PER_SM = 1280  # with more, a thread has too few registers
MOST_BLOCKS = 3  # on an SM


def hold_rows(work: RowWork, given: RowReductionConfig) -> RowReductionConfig | None:
    """Return how clusters hold long rows of several tensors; None for others.

    - `given`: what is decided already: a user who says how rows are cut up gets that.
    """
    model = model_of_target()
    dealt = _deal_out_held(work)
    if (
        dealt is None
        or not takes_clusters(given)
        or not work.unstaged
        or work.reductions > 1
        or work.kept
        or work.beside
        or work.is_one_tensor
        or model.has_few(work.rows)
    ):
        return None
    cluster, threads = dealt
    if not model.chip.holds_clusters(cluster):
        return None
    blocks = min(MOST_BLOCKS, MAX_THREADS_PER_SM // threads)
    return RowReductionConfig(threads=threads, rows=1, cluster=cluster, blocks=blocks, stage=False)


def _deal_out_held(work: RowWork) -> tuple[int, int] | None:
    """Return the thread blocks of a cluster and their threads, if those have whole vectors."""
    row = work.columns * work.loaded
    if work.columns < LEAST_COLUMNS:
        return None
    cluster = next((x for x in HELD_SIZES if row <= x * HELD_PART), None)
    for chunks in CHUNKS:
        whole = (cluster or 1) * chunks * work.vector
        threads = work.columns // whole
        if cluster and work.columns % whole == 0 and threads % THREADS_PER_WARP == 0:
            return (cluster, threads) if threads <= MAX_THREADS else None
    return None
