"""Long rows of several tensors that no bulk copy brings: clusters hold them in registers.

Rows of which elements are computed, stored and read again (a residual's sum in front of its norm)
have no place in shared memory. As few thread blocks as have room for a row share it, each thread
has four vectors of each tensor, and the assembler is told how many thread blocks an SM is to have:
left alone it takes registers for a row in float32 beside its 16 bits, and half as many fit.
"""

from __future__ import annotations

from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.facts.programming_model import MAX_THREADS, THREADS_PER_WARP
from tvm_hopper.requests.targets import chip_of_target

from .config import RowReductionConfig
from .shared_model import takes_clusters
from .work import CLUSTERS, RowWork

LEAST_COLUMNS = 1 << 16  # of a row
PART = 80 << 10  # bytes of it in each of a cluster's thread blocks, at most
SIZES = (4, 8, 16)  # thread blocks of a cluster: the fewest that have room for a row
CHUNKS = (4, 5)  # vectors of a thread, of each tensor: the first that leaves whole warps
VECTOR_BYTES = 16
TOGETHER = 1280  # threads of an SM: of more a thread has too few registers
MOST_BLOCKS = 3  # on an SM
ROWS = 4  # for each SM, or more: else nothing hides a latency


def hold_rows(work: RowWork, given: RowReductionConfig) -> RowReductionConfig | None:
    """Return how clusters hold long rows of several tensors; None for others.

    Parameters
    ----------
    work : RowWork
        What there is to do.
    given : RowReductionConfig
        What is decided already: a user who says how rows are cut up gets that.
    """
    device = chip_of_target()
    dealt = _deal_out(work)
    if (
        dealt is None
        or not takes_clusters(given)
        or not work.unstaged
        or work.reductions > 1
        or work.kept
        or work.beside
        or work.vector * work.loaded <= VECTOR_BYTES
        or (work.rows is not None and work.rows <= ROWS * device.num_sms)
    ):
        return None
    cluster, threads = dealt
    if cluster > CLUSTERS[-1] and device.num_sms < DEFAULT_NUM_SMS:
        return None  # so many may find no room together
    blocks = min(MOST_BLOCKS, TOGETHER // threads)
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
