"""`choose_classes`: bounds of size classes, by the cost model.

The model gives a configuration for each row count of a ladder, and its time at the row counts in
between. The chosen bounds lose least against a separate kernel for each row count. Each additional
class must gain `MIN_GAIN_PER_KERNEL` over an octave of row counts. At a bound the kernel is that of
a static build, so no estimate matters there.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_hopper.facts.devices import Chip
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.schedule.arguments import as_int, as_size

from .candidates import as_candidates
from .config import MatmulConfig
from .dot_choice import choose_dots
from .estimate import Floats, KernelForm, estimate
from .model import as_product, choose_config, rank_both
from .parts import for_any_rows
from .product_shape import ProductShape
from .rate_constants import Rates
from .rates import MEASURED
from .split import ANYWHERE

MOST_CLASSES = 8  # kernels that one function is worth
TILE_CLASSES = MOST_CLASSES - 1  # and one of dot products, for one row
MIN_GAIN_PER_KERNEL = 0.05  # of the time over an octave of row counts
MUCH, STEEPER = 0.1, 100  # a loss of more than this part of the time counts so many times more
LADDER = (
    *(8, 16, 24, 32, 40, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896),
    *(1024, 1280, 1536, 2048, 3072, 4096, 8192),
)
POINTS = tuple(sorted({round(2 ** (i / 8)) for i in range(113)}))  # to 16384, eight an octave
ROUND = 6  # weight of a power of two among them: batches are padded to it
OCTAVE = 7 + ROUND  # weight of the points in an octave


@dataclass(frozen=True)
class AnyRows:
    """A product of any number of rows, for the model: see `choose_classes`."""

    n: int
    k: int
    dtype: str
    given: MatmulConfig
    chip: Chip
    majors: tuple[str, str]
    out_dtype: str
    batch: int = 1

    @staticmethod
    def of(
        where: str,
        n: int,
        k: int,
        dtype: str,
        given: MatmulConfig | None,
        majors: tuple[str, str],
        out_dtype: str | None,
        batch: int = 1,
    ) -> AnyRows:
        """Check what a helper was given."""
        n, k = as_size(where, "n", n), as_size(where, "k", k)
        given = for_any_rows(given or MatmulConfig())
        batch = as_int(where, "batch", batch, 1) or 1
        return AnyRows(n, k, dtype, given, chip_of_target(), majors, out_dtype or dtype, batch)

    def choose(self, rows: Sequence[int]) -> list[MatmulConfig]:
        """Return what is chosen for each of some row counts; that for the last if it is decided."""

        def one(m: int) -> MatmulConfig:
            given = for_any_rows(self.given, m)
            return choose_config(
                *(m, self.n, self.k, self.dtype, given),
                majors=self.majors,
                out_dtype=self.out_dtype,
                batch=self.batch,
            )

        largest = one(rows[-1])
        return [largest] if self.given.tile is not None else [*map(one, rows[:-1]), largest]

    def estimate(self, rows: Sequence[int], configs: Sequence[MatmulConfig]) -> Floats:
        """Return microseconds, rows x configurations."""
        return estimate_all([self._product(m) for m in rows], configs, self.chip, any_rows=True)

    def has_dots(self) -> bool:
        """Tell whether one row is better computed by dot products, as for a product of one row."""
        if self.batch > 1:
            return False
        row = self._product(1)
        best, *_ = rank_both(row, self.given, self.chip, 1)
        return choose_dots(row, self.given, best.microseconds, self.chip)

    def _product(self, m: int) -> ProductShape:
        return as_product(m, self.n, self.k, self.dtype, self.majors, self.out_dtype, self.batch)


def choose_classes(
    n: int,
    k: int,
    dtype: str = "float16",
    given: MatmulConfig | None = None,
    majors: tuple[str, str] = ("k", "k"),
    out_dtype: str | None = None,
    batch: int = 1,
) -> tuple[int, ...]:
    """Choose the size classes of a product with symbolic rows.

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
        How many such products the kernel computes.

    Returns
    -------
    bounds : tuple of int
        Upper bounds of the classes, ascending, at most eight. A class has the kernel that
        `hs.matmul` takes for its bound, without clusters. The last one also serves more rows.

    Raises
    ------
    ScheduleError
        An argument is illegal.
    """
    asked = AnyRows.of("choose_classes", n, k, dtype, given, majors, out_dtype, batch)
    configs = asked.choose(LADDER)
    if len(configs) == 1:
        return LADDER[-1:]  # one kernel for all
    times = asked.estimate(POINTS, configs).tolist()
    cuts = [(x.tile, x.consumers, x.transposed, x.split_k, x.cluster) for x in configs]
    losses: list[list[float]] = [[] for _ in configs]
    for m, row in zip(POINTS, times, strict=True):
        best = LADDER.index(m) if m in LADDER else row.index(min(row))
        for loss, one, time in zip(losses, cuts, row, strict=True):
            beyond = max(0.0, time / row[best] - 1)
            loss.append(0.0 if one == cuts[best] else _weigh(m, beyond))
    bounds = cut(losses)
    return (1, *bounds) if asked.has_dots() else bounds


def _weigh(m: int, loss: float) -> float:
    """Return what a loss of time at one row count counts for."""
    return (ROUND if m & (m - 1) == 0 else 1) * (loss + STEEPER * max(0.0, loss - MUCH))


def cut(losses: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Pick bounds out of the ladder; the last rung is always one.

    - `losses`: for the kernel of each rung what it loses at each of POINTS, as a part of the time,
      weighted.
    """
    price = MIN_GAIN_PER_KERNEL * OCTAVE
    sums = [list(itertools.accumulate(row, initial=0.0)) for row in losses]
    places = [bisect.bisect_right(POINTS, rung) for rung in LADDER[:-1]]

    @functools.cache
    def above(start: int, left: int) -> tuple[float, tuple[int, ...]]:
        """Return the least loss above a rung, -1 for none, and the bounds there."""
        low = places[start] if start >= 0 else 0
        ways: list[tuple[float, tuple[int, ...]]] = [
            (price + sums[-1][-1] - sums[-1][low], LADDER[-1:])
        ]
        for rung in range(start + 1, len(places) if left > 1 else 0):
            own = price + sums[rung][places[rung]] - sums[rung][low]
            if own < ways[0][0]:
                rest, bounds = above(rung, left - 1)
                ways.append((own + rest, (LADDER[rung], *bounds)))
        return min(ways)

    return above(-1, TILE_CLASSES)[1]


def estimate_all(
    wanted: Sequence[ProductShape],
    configs: Sequence[MatmulConfig],
    chip: Chip | None = None,
    any_rows: bool = False,
    rates: Rates = MEASURED,
) -> Floats:
    """Estimate products with each of several configurations.

    - `wanted`: alike but for their rows; of the type of `configs`.
    - `configs`: complete, legal, and not sampled.
    - `chip`: none: that of the target in scope.
    - `any_rows`: whether the kernels are made for any number of rows.
    - `rates`: the constants.
    - returns: microseconds.
    """
    chip = chip or chip_of_target()
    times = np.empty((len(wanted), len(configs)))
    rows: Any = np.array([[x.m] for x in wanted])
    every = replace(wanted[0], m=rows)
    for way, by_kernels in itertools.product((False, True), repeat=2):
        kinds = [(bool(x.transposed), x.split_mode in ANYWHERE) for x in configs]
        places = [i for i, kind in enumerate(kinds) if kind == (way, by_kernels)]
        if not places:
            continue
        tiles = as_candidates([configs[i] for i in places], wanted[0].dtype, wanted[0].k)
        shape = every.transposed if way else every
        form = KernelForm(by_kernels, any_rows=any_rows)
        times[:, places] = estimate(shape, tiles, chip, rates, form)
    return times
