"""How registers are shared out between the warp groups of one CTA.

A kernel starts with the same number of registers in every thread; `setmaxnreg` (PTX ISA 9.1,
9.7.19.5) moves some from the producer to the consumers. `setmaxnreg.inc` blocks until the CTA's
pool has enough, for ever when the sum is too large, and neither form may go the wrong way.
"""

from __future__ import annotations

from .hopper import (
    MAX_THREADS,
    REGISTER_ALLOCATION_UNIT,
    REGISTERS_PER_BLOCK,
    SETMAXNREG_MAX,
    SETMAXNREG_MIN,
    SETMAXNREG_STEP,
    WARP_GROUP_THREADS,
)

# (producer, consumer) by the number of consumer warp groups; with one producer warp group each sum
# stays inside the pool: 2 x 256, 3 x 168 and 4 x 128.
DEFAULT_SPLIT = {1: (56, 256), 2: (40, 232), 3: (32, 160)}
# A consumer needs registers beside its accumulators: descriptors, loop counters, addresses.
CONSUMER_OVERHEAD = 24


def threads(consumers: int) -> int:
    """Return the threads of a CTA with one producer and `consumers` consumer warp groups."""
    return WARP_GROUP_THREADS * (1 + consumers)


def entry_registers(num_threads: int) -> int:
    """Return the registers that each thread of a CTA of `num_threads` starts with.

    The compiler is told to fit one CTA of that many threads on an SM, and rounds down to eight.
    256 means that ptxas uses up to 255 and the hardware hands out 256.
    """
    if not 0 < num_threads <= MAX_THREADS:
        raise ValueError(f"threads of a CTA: found {num_threads}; need 1 to {MAX_THREADS}")
    share = REGISTERS_PER_BLOCK // num_threads
    return min(share // REGISTER_ALLOCATION_UNIT * REGISTER_ALLOCATION_UNIT, SETMAXNREG_MAX)


def default_split(consumers: int) -> tuple[int, int]:
    """Return the (producer, consumer) registers used when the schedule names none.

    Raises
    ------
    ValueError
        There is no split for that many consumers.
    """
    if consumers not in DEFAULT_SPLIT:
        raise ValueError(f"consumers: found {consumers}; need 1, 2 or 3 warp groups")
    return DEFAULT_SPLIT[consumers]


def check(producer: int, consumer: int, consumers: int) -> tuple[str, ...]:
    """Return every rule that the split breaks as "found ...; need ...", empty when it is legal.

    Parameters
    ----------
    producer, consumer
        Registers of each thread after `setmaxnreg.dec` and `setmaxnreg.inc`.
    consumers
        Number of consumer warp groups; there is one producer warp group.
    """
    entry = entry_registers(threads(consumers))
    found = [
        f"found {name} registers {value}; need a multiple of {SETMAXNREG_STEP} "
        f"from {SETMAXNREG_MIN} to {SETMAXNREG_MAX}"
        for name, value in (("producer", producer), ("consumer", consumer))
        if value % SETMAXNREG_STEP or not SETMAXNREG_MIN <= value <= SETMAXNREG_MAX
    ]
    if producer > entry:
        found.append(
            f"found producer registers {producer}; need at most the {entry} that it starts with"
        )
    if consumer < entry:
        found.append(
            f"found consumer registers {consumer}; need at least the {entry} that it starts with"
        )
    total, pool = producer + consumers * consumer, (1 + consumers) * entry
    if total > pool:
        found.append(
            f"found {producer} + {consumers} x {consumer} = {total} registers; "
            f"need at most {1 + consumers} x {entry} = {pool}, or a consumer waits for ever"
        )
    return tuple(found)


def accumulator_registers(tile_m: int, tile_n: int, consumers: int) -> int:
    """Return the float32 accumulators that one consumer thread holds of a tile_m x tile_n tile."""
    return tile_m * tile_n // (consumers * WARP_GROUP_THREADS)
