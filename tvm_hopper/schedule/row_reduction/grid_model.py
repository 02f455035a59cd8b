"""Estimates of grid kernels whose rows exceed L2."""

from __future__ import annotations

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.memory_bound.work import RowWork

from .choice import RowChoice
from .config import RowReductionConfig

# Stores by a policy stay where they are written. Of rows in registers of a cluster that meet two
# tensors the assembler loads those late then: LayerNorm of 32768 columns in float32 at 0.982 of a
# copy instead of 0.995. A gradient of cross-entropy, which reads labels, fell from 0.950 to 0.903.
MIN_TENSORS_FOR_STORE_HINT = 2
PAIR = 2  # thread blocks that begin together
MIN_BYTES_PER_PAIRED_BLOCK = 8 << 10  # of its rows: with less, pairs do not begin fast enough


def keeps_end(work: RowWork, choice: RowChoice) -> bool:
    """Tell whether the end of what is stored is to stay in L2, if that is little of all."""
    meets_late = (
        choice.tile.cluster > 1 and not choice.stage and work.tensors >= MIN_TENSORS_FOR_STORE_HINT
    )
    return choice.hint and not work.beside and not meets_late


def begin_together(
    work: RowWork, choice: RowChoice, blocks: int | None, given: RowReductionConfig
) -> int:
    """Return how many neighbouring thread blocks begin together.

    Parameters
    ----------
    work : RowWork
        What there is to do.
    choice : RowChoice
        How it is cut up.
    blocks : int, optional
        Thread blocks of the grid; None: known at run time only.
    given : RowReductionConfig
        What is decided already.

    Raises
    ------
    ScheduleError
        They are to, and share rows, as a cluster that works together.
    """
    tile = choice.tile
    if (given.together or 1) > 1 and tile.cluster > 1:
        found = f"together={given.together} for rows of {tile.cluster} thread blocks of a cluster"
        raise cannot_schedule("RowReductionConfig", found, "one of the two", "give cluster=1")
    if given.together is not None:
        return given.together
    loaded = work.loaded * work.columns * tile.rows
    in_pairs = blocks is not None and blocks % PAIR == 0 and loaded >= MIN_BYTES_PER_PAIRED_BLOCK
    return PAIR if choice.hint and not work.beside and tile.cluster == 1 and in_pairs else 1
