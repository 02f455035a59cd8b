"""Size classes of a product whose rows are symbolic: which there are, and what was asked for.

A class is a range of row counts that one kernel computes, named by its upper bound; its kernel is
the one that `choose_config` takes for exactly so many rows.  The last class goes on above its own.

Bounds that a user leaves open come from the model alone, with no insight into how it chooses: it is
asked for the configuration of each row count of a ladder, and for the time that each of these would
take at row counts in between.  Of all ways to pick bounds out of the ladder the one is taken that
loses least against a kernel of its own for each row count, where a class more has to gain
`LEAST_GAIN` over an octave of row counts.  At a bound the kernel is that of a static build, so no
estimate matters there.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.errors import HopperError, cannot_schedule
from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import OPERAND_DTYPES
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.schedule.arguments import as_bounds, as_int, as_ranges, as_size, check_type

from .branches import ProductSite, check_rows, look_at
from .candidates import as_candidates
from .config import MatmulConfig
from .dot_choice import choose_dots
from .estimate import Floats, ProductShape, estimate
from .model import as_product, choose_config
from .parts import for_any_rows
from .rates import MEASURED
from .recognize import Matmul
from .split import ANYWHERE

MOST_CLASSES = 8  # kernels that one function is worth
TILE_CLASSES = MOST_CLASSES - 1  # and one of dot products, for one row
LEAST_GAIN = 0.05  # of the time over an octave of row counts, for which a kernel more is built
MUCH, STEEPER = 0.1, 100  # a loss of more than this part of the time counts so many times more
LADDER = (
    *(8, 16, 24, 32, 40, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896),
    *(1024, 1280, 1536, 2048, 3072, 4096, 8192),
)
POINTS = tuple(sorted({round(2 ** (i / 8)) for i in range(113)}))  # to 16384, eight an octave
ROUND = 6  # weight of a power of two among them: batches are padded to it
OCTAVE = 7 + ROUND  # weight of the points in an octave
CUTS = ("tile", "stages", "last_stage", "consumers", "registers", "dots", "direct")  # of one kernel


@dataclass(frozen=True)
class Asked:
    """What a call of `hs.matmul` says of row counts.

    Attributes
    ----------
    configs : mapping or None
        The configuration of each class by its bound, ascending; empty: one kernel; None: by the
        model.
    rows : int or None
        The row count that one kernel is chosen for.
    ranges : mapping or None
        Up to how many rows each range goes, and the rows that its kernel is chosen for.
    """

    configs: Mapping[int, MatmulConfig] | None
    rows: int | None
    ranges: Mapping[int, int] | None = None


def as_asked(config: MatmulConfig | None, classes: Any, rows: Any) -> Asked:
    """Check what was asked for; with a tile of its own a configuration speaks of one kernel."""
    rows = as_int("matmul", "rows", rows, 1)
    if rows is not None and classes is not None:
        need = "one of the two: rows chooses one kernel"
        raise cannot_schedule("matmul", f"classes and rows={rows}", need)
    given = config or MatmulConfig()
    decided = next((x for x in CUTS if getattr(given, x) not in (None, False)), None)
    if classes is None:
        return Asked({} if rows is not None or decided is not None else None, rows)
    configs: dict[int, MatmulConfig] = {}
    ranges: dict[int, int] | None = None
    if isinstance(classes, Mapping) and any(isinstance(x, int) for x in classes.values()):
        ranges = as_ranges("matmul", "classes", classes)
        classes = tuple(sorted(set(ranges.values())))
    elif isinstance(classes, Mapping):
        for bound, one in classes.items():
            need = "an hs.MatmulConfig for each bound"
            check_type("matmul", f"classes[{bound!r}]", one, MatmulConfig, need)
            configs[bound] = one or given
        if config is not None:
            need = "the configuration of each class in classes alone"
            raise cannot_schedule("matmul", "config beside classes with configurations", need)
        classes = tuple(classes)
        _check_one_promise(configs)
    bounds: tuple[int, ...] = ()
    if not isinstance(classes, (tuple, list)) or classes:
        bounds = as_bounds("matmul", "classes", classes, MOST_CLASSES)
    if bounds and decided is not None and not configs:
        raise cannot_schedule(
            "matmul",
            f"classes of kernels that all have {decided}={getattr(given, decided)}",
            "a configuration for each class, or one that leaves this open",
            f"give them: classes={{{bounds[0]}: hs.MatmulConfig(...), ...}}",
        )
    return Asked({x: configs.get(x, given) for x in bounds}, rows, ranges)


def _check_one_promise(configs: Mapping[int, MatmulConfig]) -> None:
    """Refuse `batch_invariant` of some classes: between classes the bits would change then."""
    promising = [bound for bound, one in configs.items() if one.batch_invariant]
    if promising and len(promising) < len(configs):
        others = [bound for bound in configs if bound not in promising]
        raise cannot_schedule(
            "matmul",
            f"batch_invariant=True for classes {promising} and not for {others}",
            "it for every class or for none: a row's bits must not change from class to class",
        )


@dataclass(frozen=True)
class ClassKernel:
    """One kernel of a product: how it is cut up, and the rows that what is open is chosen for.

    Attributes
    ----------
    rows : int or None
        None: those of the product.
    is_open : bool
        It may be given any number of rows.
    bounds : tuple of int
        Up to how many rows each of its ranges goes, ascending; empty: one range, to `rows`.
    """

    rows: int | None
    config: MatmulConfig
    is_open: bool = False
    bounds: tuple[int, ...] = ()


def product_of(problem: Matmul, kernel: ClassKernel, outputs: tuple[str, ...]) -> ProductShape:
    """Describe a product for the estimate: a class has the rows of its bound."""
    majors = problem.lhs.major, problem.rhs.major
    rows = problem.m.extent if kernel.rows is None else kernel.rows
    extents = rows, problem.n.extent, problem.k.extent
    return as_product(*extents, problem.lhs.dtype, majors, outputs[0])


def find_kernels(
    sch: s_tir.Schedule, block: Any, given: MatmulConfig, asked: Asked
) -> tuple[ClassKernel, ...]:
    """Decide which kernels a product gets, ascending by their rows.

    Raises
    ------
    ScheduleError
        Rows or classes were asked for, and the product's rows are not symbolic.
    """
    asks = asked.rows is not None or bool(asked.configs)
    function = sch.func_working_on
    if not asks and (function is None or not _has_symbols(sch.mod[function])):
        return (ClassKernel(None, given),)
    try:
        found = look_at(sch, block)
    except HopperError:
        if asks:
            raise
        return (ClassKernel(None, given),)  # is refused then, and says why
    if asked.rows is not None:
        _check_symbolic(found.problem, asked.rows)
        return (ClassKernel(asked.rows, given, is_open=found.most_rows is None),)
    if asked.ranges is not None:
        check_rows(found)
        return _of_ranges(asked.ranges, given)
    configs = asked.configs
    if configs is None:
        ranges = _by_model(found, given)
        return _of_ranges(ranges, given) if ranges else (ClassKernel(found.most_rows, given),)
    if not configs:
        return (ClassKernel(found.most_rows, given),)
    check_rows(found)
    last = max(configs)
    return tuple(ClassKernel(bound, one, bound == last) for bound, one in configs.items())


def _of_ranges(ranges: Mapping[int, int], given: MatmulConfig) -> tuple[ClassKernel, ...]:
    """Return the kernels of ranges, ascending by their rows."""
    bounds: dict[int, list[int]] = {}
    for bound, rows in ranges.items():
        bounds.setdefault(rows, []).append(bound)
    last = ranges[max(ranges)]
    return tuple(
        ClassKernel(rows, given, rows == last, tuple(sorted(bounds[rows])))
        for rows in sorted(bounds)
    )


def ranges_of(kernels: Sequence[ClassKernel]) -> dict[int, int]:
    """Return up to how many rows each range goes, ascending, and what its kernel is called by."""
    found = [(x, one.rows) for one in kernels if one.rows for x in one.bounds or (one.rows,)]
    return dict(sorted(found))


def _check_symbolic(problem: Matmul, rows: int) -> None:
    if isinstance(problem.m.extent, int):
        found = f"rows={rows} for M = {problem.m.extent}"
        raise cannot_schedule(f"block {problem.name}", found, "a symbolic M", "leave it out")


def _by_model(found: ProductSite, given: MatmulConfig) -> dict[int, int]:
    """Choose the ranges that nobody asked for; none where one kernel is all that there can be."""
    from .ranges import choose_ranges  # which asks this module for estimates

    problem = found.problem
    m, n, k = problem.m.extent, problem.n.extent, problem.k.extent
    if isinstance(m, int) or not isinstance(n, int) or not isinstance(k, int):
        return {}
    if not found.is_outermost or problem.lhs.dtype not in OPERAND_DTYPES:
        return {}  # what is refused is refused as one kernel, whose words name the tensor
    majors = problem.lhs.major, problem.rhs.major
    return choose_ranges(n, k, problem.lhs.dtype, given, majors=majors, out_dtype=found.out_dtype)


def _has_symbols(func: Any) -> bool:
    shapes = [list(x.ty.shape) for x in func.params if tirx.is_buffer_var(x)]
    return any(ir.static_int(extent) is None for shape in shapes for extent in shape)


def choose_classes(
    n: int,
    k: int,
    dtype: str = "float16",
    given: MatmulConfig | None = None,
    num_sms: int | None = None,
    majors: tuple[str, str] = ("k", "k"),
    out_dtype: str | None = None,
) -> tuple[int, ...]:
    """Choose the size classes of a product with symbolic rows.

    Parameters
    ----------
    n, k : int
        Columns and depth of the product, in elements.
    dtype : str
        Type of the operands.
    given : MatmulConfig, optional
        What is decided already.
    num_sms : int, optional
        SMs of the device to choose for; None: what the target in scope says, else 132.
    majors : tuple of str
        For A and for B, along which of its dimensions rows are contiguous in memory: "k", or "mn".
    out_dtype : str, optional
        Type of the output; None: that of the operands.

    Returns
    -------
    bounds : tuple of int
        Rows up to which each class goes, ascending, eight at most. The kernel of a class is the one
        that `hs.matmul` takes for as many rows, of blocks that load alone; the last one also runs
        above its bound.

    Raises
    ------
    ScheduleError
        An argument is illegal.
    """
    n, k = (as_size("choose_classes", name, x) for name, x in (("n", n), ("k", k)))
    chip = chip_of_target()
    num_sms = as_int("choose_classes", "num_sms", num_sms, 1) or chip.num_sms
    given = for_any_rows(given or MatmulConfig())
    choose = functools.partial(
        choose_config, n=n, k=k, dtype=dtype, given=given, num_sms=num_sms,
        majors=majors, out_dtype=out_dtype,
    )  # fmt: skip
    largest = choose(LADDER[-1])
    if given is not None and given.tile is not None:
        return LADDER[-1:]  # one kernel for all
    configs = [*map(choose, LADDER[:-1]), largest]
    wanted = [as_product(m, n, k, dtype, majors, out_dtype or dtype) for m in POINTS]
    chip = replace(chip, num_sms=num_sms)
    times = estimate_all(wanted, configs, chip).tolist()
    cuts = [(x.tile, x.consumers, x.transposed, x.split_k, x.cluster) for x in configs]
    losses: list[list[float]] = [[] for _ in configs]
    for m, row in zip(POINTS, times, strict=True):
        best = LADDER.index(m) if m in LADDER else row.index(min(row))
        for loss, one, time in zip(losses, cuts, row, strict=True):
            beyond = max(0.0, time / row[best] - 1)
            loss.append(0.0 if one == cuts[best] else _weigh(m, beyond))
    bounds = cut(losses)
    own = choose_dots(wanted[0], given or MatmulConfig(), times[0][0], chip)
    return (wanted[0].m, *bounds) if own else bounds


def _weigh(m: int, loss: float) -> float:
    """Return what a loss of time at one row count counts for."""
    return (ROUND if m & (m - 1) == 0 else 1) * (loss + STEEPER * max(0.0, loss - MUCH))


def cut(losses: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Pick bounds out of the ladder; the last rung is always one.

    Parameters
    ----------
    losses
        For the kernel of each rung what it loses at each of POINTS, as a part of the time,
        weighted.
    """
    price = LEAST_GAIN * OCTAVE
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
    wanted: Sequence[ProductShape], configs: Sequence[MatmulConfig], chip: Chip | None = None
) -> Floats:
    """Estimate products with each of several configurations.

    Parameters
    ----------
    wanted : sequence of ProductShape
        Alike but for their rows; of the type of `configs`.
    configs : sequence of MatmulConfig
        Complete, legal, and not sampled.
    chip : Chip, optional
        None: that of the target in scope.

    Returns
    -------
    times : array, len(wanted) x len(configs)
        Microseconds.
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
        times[:, places] = estimate(shape, tiles, chip, MEASURED, by_kernels)
    return times
