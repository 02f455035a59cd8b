"""Estimates of clusters that hold long rows in registers.

Rows of which elements are computed, stored and read again (a residual's sum before its norm) have
no place in shared memory. The fewest thread blocks that can hold a row share it, each thread has
four vectors of each tensor, and the assembler gets the number of thread blocks per SM: left alone
it takes registers for a row in float32 next to its 16 bits, and half as many fit.
"""

from __future__ import annotations

from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.schedule.memory_bound.estimate import model_of_target
from tvm_hopper.schedule.memory_bound.work import RowWork

from .config import RowReductionConfig
from .shared_model import takes_clusters

LEAST_COLUMNS = 1 << 16  # of a row
PART = 80 << 10  # bytes of it in each of a cluster's thread blocks, at most
SIZES = (4, 8, 16)  # thread blocks of a cluster: the fewest that have room for a row
CHUNKS = (4, 5)  # vectors of a thread, of each tensor: the first that leaves whole warps
MAX_THREADS_PER_SM = 1280  # with more, a thread has too few registers
MOST_BLOCKS = 3  # on an SM


def hold_rows(work: RowWork, given: RowReductionConfig) -> RowReductionConfig | None:
    """Return how clusters hold long rows of several tensors; None for others.

    Parameters
    ----------
    work : RowWork
        What there is to do.
    given : RowReductionConfig
        What is decided already: a user who says how rows are cut up gets that.
    """
    model = model_of_target()
    dealt = _deal_out(work)
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


def _deal_out(work: RowWork) -> tuple[int, int] | None:
    """Return the thread blocks of a cluster and their threads, if those have whole vectors."""
    row = work.columns * work.loaded
    if work.columns < LEAST_COLUMNS:
        return None
    cluster = next((x for x in SIZES if row <= x * PART), None)
    for chunks in CHUNKS:
        whole = (cluster or 1) * chunks * work.vector
        threads = work.columns // whole
        if cluster and work.columns % whole == 0 and threads % THREADS_PER_WARP == 0:
            return (cluster, threads) if threads <= MAX_THREADS else None
    return None
