"""Arrival counts of the full and empty mbarriers of a ring buffer.

A count that is too high deadlocks, one that is too low races. So call sites give the number of
consumers and take the count from here.

PTX ISA 9.1, 9.7.13.15: `mbarrier.arrive.expect_tx` is one arrival and adds to the transaction
count; each completed copy subtracts its bytes; a phase completes when both counts are zero.
`cp.async.mbarrier.arrive.noinc` is one arrival, made when all earlier `cp.async` of its thread are
complete, which the count has to provide for (9.7.13.15).
"""

from __future__ import annotations

from .programming_model import MBARRIER_MAX_COUNT

# A fresh barrier is in phase 0; waiting on parity p passes once the phase of that parity is over.
CONSUMER_START_PARITY = 0  # the first wait on `full` blocks until the first copy has landed
PRODUCER_START_PARITY = 1  # the first wait on `empty` passes: every slot starts free


def full_arrive_count(expecting: int = 1, copying: int = 0) -> int:
    """Return the arrivals of `full`.

    Parameters
    ----------
    expecting : int
        Threads that expect bytes of copies they issue: one `arrive.expect_tx` of each.
    copying : int
        Threads that copy parts of their own by `cp.async`: one arrival of each.
    """
    return _check_count(expecting + copying, "producer threads")


def empty_arrive_count(consumers: int, peers: int = 1) -> int:
    """Return the arrivals of `empty`: one elected thread of each consumer warp group.

    `peers` is the number of CTAs whose consumers read what one copy delivers (multicast).
    """
    return _check_count(consumers * peers, "consumer warp groups")


def _check_count(count: int, what: str) -> int:
    if not 1 <= count <= MBARRIER_MAX_COUNT:
        raise ValueError(f"mbarrier count: found {count} {what}; need 1 to {MBARRIER_MAX_COUNT}")
    return count
