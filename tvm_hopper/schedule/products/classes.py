"""Size classes of a product whose rows are symbolic: which there are, and what was asked for.

A class is a range of row counts that one kernel computes, named by its upper bound; its kernel is
the one that `choose_config` takes for exactly so many rows.  The last class goes on above its own.

The bounds that a user leaves open come from the model alone, with no insight into how it chooses:
it is asked for the best configuration at each row count of a ladder, and for the time that each of
these would take at row counts in between.  Of all ways to cut the ladder into classes the one is
taken that loses least against a kernel of its own for each row count, where a class more has to
gain `LEAST_GAIN` over an octave of row counts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.errors import HopperError, cannot_schedule
from tvm_hopper.requests.targets import num_sms as target_num_sms
from tvm_hopper.schedule.arguments import as_block, as_bounds, as_int, as_size, check_type

from .branches import check_rows, look_at, stands_alone
from .config import MatmulConfig
from .model import SYMBOLIC_EXTENT, choose_config, estimate_cycles

MOST_CLASSES = 8  # kernels that one function is worth
MOST_CHOSEN = 6  # of these where nobody asked
LADDER = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)  # bounds
LEAST_GAIN = 0.04  # of the time over an octave of row counts, for which a kernel more is built
POINTS_PER_OCTAVE = 4
CUTS = ("tile", "stages", "last_stage", "consumers", "registers")  # fields that cut one kernel
POINTS = tuple(
    sorted({round(2 ** (i / POINTS_PER_OCTAVE)) for i in range(57)})
)  # row counts they are judged at


@dataclass(frozen=True)
class Asked:
    """What a call of `hs.matmul` says of row counts.

    Attributes
    ----------
    bounds : tuple of int or None
        Of each class, ascending; empty: one kernel; None: by the model.
    configs : mapping
        The configuration of each class, where classes were given with theirs.
    rows : int or None
        The row count that one kernel is chosen for.
    """

    bounds: tuple[int, ...] | None
    configs: Mapping[int, MatmulConfig]
    rows: int | None


def as_asked(config: MatmulConfig | None, classes: Any, rows: Any) -> Asked:
    """Check what was asked for; with a tile of its own a configuration speaks of one kernel."""
    rows = as_int("matmul", "rows", rows, 1)
    if rows is not None and classes is not None:
        need = "one of the two: rows chooses one kernel"
        raise cannot_schedule("matmul", f"classes and rows={rows}", need)
    given = config or MatmulConfig()
    cut = next((x for x in CUTS if getattr(given, x) is not None), None)
    if classes is None:
        return Asked(() if rows is not None or cut is not None else None, {}, rows)
    configs: dict[int, MatmulConfig] = {}
    if isinstance(classes, Mapping):
        for bound, one in classes.items():
            need = "an hs.MatmulConfig for each bound"
            check_type("matmul", f"classes[{bound!r}]", one, MatmulConfig, need)
            configs[bound] = one or given
        if config is not None:
            need = "the configuration of each class in classes alone"
            raise cannot_schedule("matmul", "config beside classes with configurations", need)
        classes = tuple(classes)
    bounds = as_bounds("matmul", "classes", classes, MOST_CLASSES) if len(classes) else ()
    if bounds and cut is not None and not configs:
        raise cannot_schedule(
            "matmul",
            f"classes of kernels that all have {cut}={getattr(given, cut)}",
            "a configuration for each class, or one that leaves this open",
            f"give them: classes={{{bounds[0]}: hs.MatmulConfig(...), ...}}",
        )
    return Asked(bounds, configs, rows)


@dataclass(frozen=True)
class ClassKernel:
    """One kernel of a product: how it is cut up, and the rows that what is open is chosen for.

    Attributes
    ----------
    rows : int or None
        None: those of the product.
    is_open : bool
        It may also be given more rows than that.
    """

    rows: int | None
    config: MatmulConfig
    is_open: bool = False


def find_kernels(
    sch: s_tir.Schedule, block: Any, given: MatmulConfig, asked: Asked
) -> tuple[ClassKernel, ...]:
    """Decide which kernels a product gets, ascending by their rows.

    Raises
    ------
    ScheduleError
        Rows or classes were asked for, and the product's rows are not symbolic.
    """
    if asked.rows is not None:
        problem = look_at(sch, block)
        if isinstance(problem.m.extent, int):
            found = f"rows={asked.rows} for M = {problem.m.extent}"
            raise cannot_schedule(f"block {problem.name}", found, "a symbolic M", "leave it out")
        return (ClassKernel(asked.rows, given, is_open=True),)
    bounds = asked.bounds
    if bounds is None:
        bounds = _by_model(sch, block, given)
    elif bounds:
        check_rows(sch, block)
    if not bounds:
        return (ClassKernel(None, given),)
    return tuple(
        ClassKernel(bound, asked.configs.get(bound, given), bound == bounds[-1]) for bound in bounds
    )


def _by_model(sch: s_tir.Schedule, block: Any, given: MatmulConfig) -> tuple[int, ...]:
    """Choose the classes that nobody asked for; none where one kernel is all that there can be."""
    node = sch.get(as_block(sch, block))
    if all(ir.static_int(x.dom.extent) is not None for x in node.iter_vars):
        return ()
    try:
        problem = look_at(sch, block)
    except HopperError:  # the one kernel is refused then, and says why
        return ()
    sizes = problem.n.extent, problem.k.extent
    is_symbolic = not isinstance(problem.m.extent, int)
    if not is_symbolic or not all(isinstance(x, int) for x in sizes):
        return ()
    if not stands_alone(sch, block):
        return ()
    return choose_classes(*sizes, problem.lhs.dtype, given)


def choose_classes(
    n: int,
    k: int,
    dtype: str = "float16",
    given: MatmulConfig | None = None,
    num_sms: int | None = None,
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

    Returns
    -------
    bounds : tuple of int
        Rows up to which each class goes, ascending. The kernel of a class is the one of
        `choose_config(bound, n, k, dtype, given)`; the last one also runs above its bound.

    Raises
    ------
    ScheduleError
        An argument is illegal.
    """
    n, k = (as_size("choose_classes", name, x) for name, x in (("n", n), ("k", k)))
    num_sms = as_int("choose_classes", "num_sms", num_sms, 1) or target_num_sms()
    configs = [choose_config(m, n, k, dtype, given, num_sms=num_sms) for m in LADDER]
    times = [[estimate(m, n, k, config, num_sms) for m in POINTS] for config in configs]
    best = [min(column) for column in zip(*times, strict=True)]
    losses = [[t / b - 1 for t, b in zip(row, best, strict=True)] for row in times]
    return _cut(losses)


def estimate(m: int, n: Any, k: Any, config: MatmulConfig, num_sms: int | None = None) -> int:
    """Return the cycles that the model expects of a configuration; symbolic extents are large."""
    assert config.tile is not None
    columns, depth = (x if isinstance(x, int) else SYMBOLIC_EXTENT for x in (n, k))
    return estimate_cycles(m, columns, depth, config.tile, num_sms or target_num_sms())


def _cut(losses: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Cut the ladder into classes; `losses` of each rung's kernel at each point, as a fraction."""
    price = LEAST_GAIN * POINTS_PER_OCTAVE

    @functools.cache
    def above(bound: int, left: int) -> tuple[float, tuple[int, ...]]:
        """Return the least loss above a bound, and the bounds of the classes there."""
        points = [i for i, m in enumerate(POINTS) if m > bound]
        ways: list[tuple[float, tuple[int, ...]]] = []
        for row, rung in zip(losses, LADDER, strict=True):
            if rung <= bound:
                continue
            # of equals the last one: tiles are ordered and shared out for many
            ways.append((price + sum(row[i] for i in points), (rung,)))
            if left > 1 and rung < LADDER[-1]:
                rest, bounds = above(rung, left - 1)
                own = sum(row[i] for i in points if POINTS[i] <= rung)
                ways.append((price + own + rest, (rung, *bounds)))
        return min(ways, key=lambda way: (way[0], [-bound for bound in way[1]]))

    return above(0, MOST_CHOSEN)[1]
