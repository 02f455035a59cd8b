"""Register budgets of producer and consumer warp groups (setmaxnreg).

A kernel starts with the same number of registers in every thread; `setmaxnreg` (PTX ISA 9.1,
9.7.19.5) moves some from the producer to the consumers. `setmaxnreg.inc` blocks until the CTA's
pool has enough, forever when the sum is too large, and neither form may go the wrong way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .arch import ARCHS, Arch
from .programming_model import (
    MAX_THREADS,
    SETMAXNREG_MAX,
    SETMAXNREG_MIN,
    SETMAXNREG_STEP,
    WARP_GROUP_THREADS,
)
from .wgmma import MAX_N

# (producer, consumer) by the number of consumer warp groups; with one producer warp group each sum
# stays inside the pool: 2 x 256, 3 x 168 and 4 x 128.
DEFAULT_SPLIT = {1: (56, 256), 2: (40, 232), 3: (32, 160)}
# Registers that ptxas 13.0 needs next to the accumulators, measured. For an instruction: 64x200
# fits in the 128 registers at entry of 512 threads, 64x208 is C7602. For a whole consumer: with 26
# or more left no multiplication is serialised for want of registers (C7512); with 24 these are: 208
# of 232, 184 of 208, 144 of 168, 136 of 160, 104 of 128.
BESIDE_ACCUMULATORS = 26
# The same next to several accumulators, which statements combine element by element. With 32 left
# ptxas 13.0 serialises nothing, but silu of one tile times another one spills where columns are cut
# off: 8 bytes with 192 of 232, 32 with 128 of 160; none with 184 of 232, 112 of 160 or 208 of 255.
BESIDE_SEVERAL = 44
# The same where one product's result becomes an operand of the next one in the loop, as weights of
# attention: with 34 of 240 left ptxas 13.0 spills nothing.
BESIDE_CHAINED = 32


def threads(consumers: int) -> int:
    """Return the threads of a CTA with one producer and `consumers` consumer warp groups."""
    return WARP_GROUP_THREADS * (1 + consumers)


def entry_registers(num_threads: int, arch: Arch, blocks: int = 1) -> int:
    """Return the registers that each thread of a CTA of `num_threads` starts with.

    The compiler is told to fit `blocks` CTAs of that many threads on an SM, and rounds down to
    eight.
    256 means that ptxas uses up to 255 (it reports "Used 255 registers" for 256 threads) and the
    hardware, which hands registers out in eights, gives 256.
    """
    if not 0 < num_threads <= MAX_THREADS:
        raise ValueError(f"threads of a CTA: found {num_threads}; need 1 to {MAX_THREADS}")
    unit = arch.register_allocation_unit
    share = min(arch.registers_per_block, arch.registers_per_sm // max(blocks, 1))
    return min(share // num_threads // unit * unit, SETMAXNREG_MAX)


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


def check(
    producer: int, consumer: int, consumers: int, arch: Arch, blocks: int = 1
) -> tuple[str, ...]:
    """Return every rule that the split breaks as "found ...; need ...", empty when it is legal.

    - `producer`, `consumer`: registers of each thread after `setmaxnreg.dec` and `setmaxnreg.inc`.
    - `consumers`: number of consumer warp groups; there is one producer warp group.
    - `arch`: where registers are to move.
    - `blocks`: CTAs that share an SM.
    """
    if not arch.has_setmaxnreg:
        able = " or ".join(x.name for x in ARCHS.values() if x.has_setmaxnreg)
        return (f"found {arch.name}, where registers do not move; need {able} (setmaxnreg)",)
    entry = entry_registers(threads(consumers), arch, blocks)
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
            f"need at most {1 + consumers} x {entry} = {pool}, or a consumer waits forever"
        )
    return tuple(found)


def accumulator_registers(tile_m: int, tile_n: int, consumers: int) -> int:
    """Return the float32 accumulators that one consumer thread holds of a tile_m x tile_n tile."""
    return tile_m * tile_n // (consumers * WARP_GROUP_THREADS)


def accumulator_room(consumer: int, arch: Arch, products: int = 1, is_chained: bool = False) -> int:
    """Return how many accumulators a consumer thread may hold of its `consumer` registers."""
    beside = BESIDE_ACCUMULATORS if products == 1 else BESIDE_SEVERAL
    beside = BESIDE_CHAINED if is_chained else beside
    return min(consumer, arch.max_registers_per_thread) - beside


@dataclass(frozen=True)
class AccumulatorBudget:
    """Accumulators of a consumer thread, and how many its registers have room for.

    Attributes
    ----------
    held
        Accumulators that the tiles of all products request.
    room
        The most that a thread of `consumer` registers may hold.
    """

    held: int
    room: int
    consumer: int

    @property
    def fits(self) -> bool:
        """Whether the rest of the registers is enough for everything else."""
        return self.held <= self.room


def accumulator_budget(
    tiles: Sequence[int],
    consumers: int,
    arch: Arch,
    consumer: int | None = None,
    is_chained: bool = False,
) -> AccumulatorBudget:
    """Return what the tiles of a kernel take of the registers of its consumers, and what they have.

    Parameters
    ----------
    tiles : sequence of int
        Accumulators of a thread, of each product.
    consumers : int
        Consumer warp groups.
    arch : Arch
        The chip that they run on.
    consumer : int, optional
        Registers of a consumer thread; None: the default of that many consumers, and where there
        is none, as many as any thread can have.
    is_chained : bool
        Whether one product's result is an operand of the next one.
    """
    if consumer is None:
        _, consumer = DEFAULT_SPLIT.get(consumers, (0, arch.max_registers_per_thread))
    room = accumulator_room(consumer, arch, len(tiles), is_chained)
    return AccumulatorBudget(sum(tiles), room, consumer)


def widest_instruction(consumers: int, arch: Arch) -> int:
    """Return the most columns of one WGMMA that ptxas takes next to that many consumers, by eights.

    It holds an instruction of n columns to the registers at entry, whatever `setmaxnreg` adds.
    """
    entry = min(entry_registers(threads(consumers), arch), arch.max_registers_per_thread)
    return min((entry - BESIDE_ACCUMULATORS) * 2 // 8 * 8, MAX_N)
