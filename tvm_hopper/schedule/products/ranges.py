"""`choose_ranges`: which kernel serves which numbers of symbolic rows.

A kernel that is best for 640 rows may be better for 1200 than any that is chosen for a few more: in
both cases its tiles fill the chip.  So a kernel serves several ranges of row counts:

    m <= 64: the kernel for 64 rows      m <= 768: that for 640      m <= 1280: that for 384 again

The model gives a configuration for each row count of a ladder, and its time at the row counts in
between. Kernels are picked that together lose least against the best one of each row count, where a
kernel more has to gain `MIN_GAIN_PER_KERNEL`. Then each range between two multiples of the tiles'
rows, in which no kernel needs another tile, gets the fastest kernel, except for
`MIN_GAIN_TO_SWITCH`: ranges are to be few.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .class_choice import LADDER, MIN_GAIN_PER_KERNEL, OCTAVE, POINTS, TILE_CLASSES, AnyRows
from .config import MatmulConfig
from .estimate import Floats

# Kernels that are tried: for these rows.
RUNGS = tuple(sorted({*LADDER, 80, 112, 160, 224, 288, 352, 416, 576, 704, 832, 960, 1152, 1792}))
# Where kernels are compared: next to powers of two, which batches are padded to, these are what
# people request, and one more than a tile holds. They count as much: `COMMON_ROW_WEIGHT` times
# others.
COMMON_ROW_COUNTS = (17, 33, 100, 300, 1000)
PLACES = tuple(sorted({*POINTS, *COMMON_ROW_COUNTS}))
COMMON_ROW_WEIGHT = 60  # with less, one of them pays where many others gain little
MOST_LOSS = 1e9  # of no kernel at all
LARGE_LOSS = 0.03  # of the time; what is beyond counts `LARGE_LOSS_WEIGHT` times
LARGE_LOSS_WEIGHT = 10  # with more, one kernel loses 5% where few others lose 15%
# And more than this `SEVERE_LOSS_WEIGHT` times more, where people request it: elsewhere it cannot
# be helped.
SEVERE_LOSS, SEVERE_LOSS_WEIGHT = 0.07, 200
# And the worst of those so many times more: the estimate is off by 5%, and 9% becomes too much.
WORST_LOSS_WEIGHT = 50000
MIN_GAIN_TO_SWITCH = 0.01  # of the time over an octave, for which another kernel is taken


def choose_ranges(
    n: int,
    k: int,
    dtype: str = "float16",
    given: MatmulConfig | None = None,
    majors: tuple[str, str] = ("k", "k"),
    out_dtype: str | None = None,
    batch: int = 1,
) -> dict[int, int]:
    """Choose kernels of a product with symbolic rows, and the ranges of row counts of each.

    Parameters
    ----------
    n, k : int
        Columns and depth of the product, in elements.
    dtype : str
        Type of the operands.
    given : MatmulConfig, optional
        Fields that are fixed.
    majors : tuple of str
        For A and for B, along which of its dimensions rows are contiguous in memory: "k", or "mn".
    out_dtype : str, optional
        Type of the output; None: that of the operands.
    batch : int
        How many such products a kernel computes.

    Returns
    -------
    ranges : dict of int to int
        Upper bound of each range, ascending, and the number of rows that its kernel is chosen for,
        at most eight different ones. The last range is unbounded. This is the default `classes` of
        `hs.matmul`.

    Raises
    ------
    ScheduleError
        An argument is illegal.
    """
    asked = AnyRows.of("choose_ranges", n, k, dtype, given, majors, out_dtype, batch)
    configs = asked.choose(RUNGS)
    if len(configs) == 1:
        return {RUNGS[-1]: RUNGS[-1]}  # one kernel for all
    times = asked.estimate(PLACES, configs)
    picked = pick(times)
    kernels = [configs[i] for i in picked]
    ends = find_ends(kernels)
    rows = sorted({*ends, *(m for m in PLACES if m <= ends[-1])})
    dealt = deal_out(asked.estimate(rows, kernels), rows, ends)
    ranges = {end: RUNGS[picked[i]] for end, i in dealt.items()}
    return {1: 1, **ranges} if asked.has_dots() else ranges


def _is_asked(rows: Sequence[int]) -> Floats:
    """Return 1 for row counts that count more, 0 for others."""
    return np.array([float(m & (m - 1) == 0 or m in COMMON_ROW_COUNTS) for m in rows])


def _weights(rows: Sequence[int]) -> Floats:
    """Return what row counts count for."""
    return np.asarray(1 + (COMMON_ROW_WEIGHT - 1) * _is_asked(rows))


def _weigh(times: Floats, rows: Sequence[int]) -> Floats:
    """Return what kernels lose at each row count against the best one, weighted.

    - `times`: how long each takes.
    - `rows`: for how many rows.
    """
    losses = times / times.min(axis=1, keepdims=True) - 1
    steepest = SEVERE_LOSS_WEIGHT * _is_asked(rows)[:, None] * np.maximum(losses - SEVERE_LOSS, 0)
    losses = losses + LARGE_LOSS_WEIGHT * np.maximum(losses - LARGE_LOSS, 0) + steepest
    return np.asarray(_weights(rows)[:, None] * losses)


def pick(times: Floats) -> list[int]:
    """Pick the kernels that lose least together, ascending; of row counts that are requested, each.

    - `times`: how long each takes.
    """
    losses = _weigh(times, PLACES)
    is_asked = _is_asked(PLACES) > 0
    lost = times[is_asked] / times[is_asked].min(axis=1, keepdims=True) - 1
    lost = np.maximum(lost - LARGE_LOSS, 0)

    def sums_with(kernels: list[int]) -> Floats:
        """Return what some kernels lose in all, with each of the others."""
        all_lose = losses[:, kernels].min(axis=1, initial=MOST_LOSS)
        some_lose = lost[:, kernels].min(axis=1, initial=MOST_LOSS)
        sums = np.minimum(all_lose[:, None], losses).sum(axis=0)
        return np.asarray(
            sums + WORST_LOSS_WEIGHT * np.minimum(some_lose[:, None], lost).max(axis=0)
        )

    picked: list[int] = []
    before = np.inf
    while len(picked) < TILE_CLASSES:
        sums = sums_with(picked)
        found = [*picked, int(np.flatnonzero(sums == sums.min())[-1])]
        after = float(sums.min())
        gained = True
        while gained:  # take another one in place of one, as long as that helps
            gained = False
            for place in range(len(found)):
                sums = sums_with(found[:place] + found[place + 1 :])
                best = int(sums.argmin())
                if sums[best] < sums[found[place]]:
                    found[place], gained = best, True
                    after = float(sums[best])
        if before - after < MIN_GAIN_PER_KERNEL * OCTAVE:
            break
        picked, before = found, after
    return sorted(picked)


def find_ends(kernels: Sequence[MatmulConfig]) -> list[int]:
    """Return the row counts above which a kernel needs a tile more, up to the last rung."""
    ends = {RUNGS[-1]}
    for config in kernels:
        assert config.tile is not None
        ends.update(range(0, RUNGS[-1], config.tile[1 if config.transposed else 0]))
    return sorted(ends - {0})


def deal_out(times: Floats, rows: Sequence[int], ends: Sequence[int]) -> dict[int, int]:
    """Give each range the kernel that takes least time there; returns the bounds and the kernels.

    - `times`: how long each takes.
    - `rows`: for these row counts, ascending, of which at least one is in each range.
    - `ends`: up to which each range goes.
    """
    octaves = np.diff(np.log2([1, *ends]))
    starts = np.searchsorted(rows, [0, *ends[:-1]], side="right")
    weights = np.add.reduceat(_weights(rows), starts)
    losses = (octaves / weights)[:, None] * np.add.reduceat(_weigh(times, rows), starts)
    least, came = losses[0], []
    for row in losses[1:]:
        other = int(least.argmin())
        stays = least <= least[other] + MIN_GAIN_TO_SWITCH
        came.append(np.where(stays, np.arange(len(row)), other))
        least = np.where(stays, least, least[other] + MIN_GAIN_TO_SWITCH) + row
    path = [int(least.argmin())]
    for row in reversed(came):
        path.append(int(row[path[-1]]))
    path.reverse()
    following = [*path[1:], -1]
    return {end: x for end, x, then in zip(ends, path, following, strict=True) if x != then}
