"""Long rows that share more than they have: a persistent kernel keeps what they share in registers.

Out of L2 each row would read more bytes of what all rows share than of its own. Clusters that stay
read it once; a thread has the same columns of each row, and bulk copies bring the rows ahead.
"""

from __future__ import annotations

from dataclasses import replace

from tvm.target import Target

from tvm_hopper.facts.arch import Arch
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.requests.keys import MOST_ROW_CLUSTER
from tvm_hopper.requests.targets import chip_of_target, find_processor

from .config import RowReductionConfig
from .work import CLUSTERS, REGISTERS_PER_SM, RowWork

SHORTEST = 256 << 10  # bytes of a row: shorter ones share with rows beside them in shared memory
PART = 32 << 10  # of it in a thread block
# By the thread blocks of a cluster: threads of each; rows on their way to shared memory, beside the
# one that is reduced and those that were; whether the next row is reduced before one is stored;
# whether L2 is told to give up last what is loaded.
WAYS = {8: (512, 4, False, True), 16: (512, 2, True, True)}
BASE_REGISTERS = 40  # of a thread, beside its part of a row and of what rows share
TURNS = 8  # of each cluster, or more: what rows share is worth its registers


def keep_shared(work: RowWork, given: RowReductionConfig) -> RowReductionConfig | None:
    """Return the persistent kernel for long rows that share more than they have; None for others.

    Parameters
    ----------
    work : RowWork
        What there is to do.
    given : RowReductionConfig
        What is decided already: a user who says how rows are cut up gets that.
    """
    chip = find_processor(Target.current(allow_none=True))
    row = work.columns * work.loaded
    if row < SHORTEST:
        return None
    cluster = row // PART
    threads, ahead, skewed, hint = WAYS.get(cluster, WAYS[MOST_ROW_CLUSTER])
    held = PART // threads * (work.loaded + work.shared) // work.loaded // 4
    if (
        replace(given, early_launch=None) != RowReductionConfig()
        or given.early_launch
        or (isinstance(chip, Arch) and not chip.has_clusters)
        or work.shared <= work.loaded
        or cluster > MOST_ROW_CLUSTER
        or cluster & (cluster - 1)
        or work.columns % (cluster * threads * work.vector)
        or (held + BASE_REGISTERS) * threads > REGISTERS_PER_SM
        or work.kept
        or work.beside
        or work.unstaged
    ):
        return None
    part = chip_of_target()
    count = part.clusters(cluster)
    if work.rows is None or work.rows < TURNS * count:
        return None
    if cluster > CLUSTERS[-1] and part.num_sms < DEFAULT_NUM_SMS:
        return None  # so many may find no room together
    return RowReductionConfig(
        threads=threads,
        rows=1,
        cluster=cluster,
        stage=True,
        reload=skewed,
        hint=None if hint else False,
        ahead=ahead,
        persistent=count,
    )
