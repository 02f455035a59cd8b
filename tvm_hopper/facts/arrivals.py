"""What each mbarrier of a full/empty ring counts, derived from who signals it.

A count that disagrees with the arrivals deadlocks when too high and races when too low, so call
sites give facts (how many consumers, which boxes) and take the count from here.

PTX ISA 9.1, 9.7.13.15: `mbarrier.arrive.expect_tx` is one arrival and adds to the transaction
count; each completed copy subtracts its bytes; a phase completes when both counts are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .hopper import MBARRIER_MAX_COUNT, MBARRIER_MAX_TX_BYTES, dtype_bytes

# A fresh barrier is in phase 0; waiting on parity p passes once the phase of that parity is over.
CONSUMER_START_PARITY = 0  # the first wait on `full` blocks until the first copy has landed
PRODUCER_START_PARITY = 1  # the first wait on `empty` passes: every slot starts free


def full_arrive_count(producers: int = 1) -> int:
    """Return the arrivals of `full`: one `arrive.expect_tx` of each thread that issues copies."""
    return _check_count(producers, "producer threads")


def empty_arrive_count(consumers: int, peers: int = 1) -> int:
    """Return the arrivals of `empty`: one elected thread of each consumer warp group.

    `peers` is the number of CTAs whose consumers read what one copy delivers (multicast).
    """
    return _check_count(consumers * peers, "consumer warp groups")


def _check_count(count: int, what: str) -> int:
    if not 1 <= count <= MBARRIER_MAX_COUNT:
        raise ValueError(f"mbarrier count: found {count} {what}; need 1 to {MBARRIER_MAX_COUNT}")
    return count


def tx_bytes(box: Sequence[int], dtype: str) -> int:
    """Return the bytes that one tensor copy of `box` elements completes.

    The whole box counts, also the part that lies outside the tensor and is filled.
    """
    return prod(box) * dtype_bytes(dtype)


def stage_tx_bytes(copies: Sequence[tuple[Sequence[int], str]]) -> int:
    """Return what `full` expects of one stage: the sum over its (box, dtype) copies.

    Raises
    ------
    ValueError
        A barrier's transaction count cannot hold the sum.
    """
    total = sum(tx_bytes(box, dtype) for box, dtype in copies)
    if not 0 < total <= MBARRIER_MAX_TX_BYTES:
        raise ValueError(f"bytes of a stage: found {total}; need 1 to {MBARRIER_MAX_TX_BYTES}")
    return total


def slot(iteration: int, stages: int) -> int:
    """Return the ring slot that iteration `iteration` uses."""
    return iteration % stages


def consumer_parity(iteration: int, stages: int) -> int:
    """Return the parity that a consumer waits for on `full` in iteration `iteration`."""
    return iteration // stages % 2 ^ CONSUMER_START_PARITY


def producer_parity(iteration: int, stages: int) -> int:
    """Return the parity that the producer waits for on `empty` in iteration `iteration`."""
    return iteration // stages % 2 ^ PRODUCER_START_PARITY
