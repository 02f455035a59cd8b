"""Size classes of a product with symbolic rows, as requested.

A class is a range of row counts that one kernel computes, named by its upper bound; its kernel is
the one that `choose_config` takes for exactly so many rows.  The last class goes on above its own.
The default classes: ranges.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.divisors import divisor
from tvm_hopper.errors import HopperError, cannot_schedule
from tvm_hopper.facts.dtypes import HALF_DTYPES
from tvm_hopper.schedule.arguments import as_bounds, as_int, as_ranges, check_type
from tvm_hopper.transforms.mma_sync.lower_mma_sync_plan import COLUMNS

from .branches import ProductSite, check_rows, look_at
from .class_choice import MOST_CLASSES
from .config import MatmulConfig
from .model import as_product
from .product_shape import ProductShape
from .ranges import choose_ranges
from .recognize import Matmul, check_types
from .ring_and_order import SYMBOLIC_BATCH

CUTS = ("tile", "stages", "consumers", "registers")  # of one kernel; and forms without tiles


@dataclass(frozen=True)
class Asked:
    """Row counts requested in a call of `hs.matmul`."""

    # the configuration of each class by its bound, ascending; empty: one kernel; None: by the model
    configs: Mapping[int, MatmulConfig] | None
    rows: int | None  # the row count that one kernel is chosen for
    # up to how many rows each range goes, and the rows that its kernel is chosen for
    ranges: Mapping[int, int] | None = None


def as_asked(config: MatmulConfig | None, classes: Any, rows: Any) -> Asked:
    """Check what was requested; with a separate tile a configuration speaks of one kernel."""
    rows = as_int("matmul", "rows", rows, 1)
    if rows is not None and classes is not None:
        need = "one of the two: rows chooses one kernel"
        raise cannot_schedule("matmul", f"classes and rows={rows}", need)
    given = config or MatmulConfig()
    cuts = CUTS if given.has_tiles else (*CUTS, "form")
    decided = next((x for x in cuts if getattr(given, x) is not None), None)
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
            raise cannot_schedule("matmul", "config next to classes with configurations", need)
        classes = tuple(classes)
        _check_one_promise(configs)
    bounds: tuple[int, ...] = ()
    if not isinstance(classes, (tuple, list)) or classes:
        bounds = as_bounds("matmul", "classes", classes, MOST_CLASSES)
    if bounds and decided is not None and not configs:
        raise cannot_schedule(
            "matmul",
            f"classes of kernels that all have {decided}={getattr(given, decided)!r}",
            "a configuration for each class, or one without this field",
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
    """One kernel of a product: how it is cut up, and the rows that what is open is chosen for."""

    rows: int | None  # None: those of the product
    config: MatmulConfig
    is_open: bool = False  # it may be given any number of rows
    # up to how many rows each of its ranges goes, ascending; empty: one range, to `rows`
    bounds: tuple[int, ...] = ()
    # outputs are staged in memory of their own, whatever is loaded after the product
    apart: bool = False


def product_of(problem: Matmul, kernel: ClassKernel, outputs: tuple[str, ...]) -> ProductShape:
    """Describe a product for the estimate: a class has the rows of its bound."""
    majors = problem.lhs.major, problem.rhs.major
    rows = problem.m.extent if kernel.rows is None else kernel.rows
    extents = rows, problem.n.extent, problem.depth
    found = as_product(*extents, problem.lhs.dtype, majors, outputs[0], problem.batch)
    return replace(found, converted_bytes=problem.stored_bytes)


def find_kernels(
    sch: s_tir.Schedule, block: Any, given: MatmulConfig, asked: Asked
) -> tuple[ClassKernel, ...]:
    """Decide which kernels a product gets, ascending by their rows.

    - raises ScheduleError: rows or classes were requested, and the product's rows are not symbolic.
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
        check_symbolic(found.problem, asked.rows)
        return (ClassKernel(asked.rows, given, is_open=found.most_rows is None),)
    if asked.ranges is not None:
        return _of_ranges(_reached(asked.ranges, check_rows(found)), given)
    configs = asked.configs
    if configs is None:
        ranges = _reached(_by_model(found, given), found.problem.m.extent)
        return _of_ranges(ranges, given) if ranges else (ClassKernel(found.most_rows, given),)
    if not configs:
        return (ClassKernel(found.most_rows, given),)
    last, reached = max(configs), _reached({x: x for x in configs}, check_rows(found))
    return tuple(ClassKernel(bound, configs[bound], bound == last) for bound in reached)


def _reached(ranges: Mapping[int, int], rows: Any) -> dict[int, int]:
    """Leave out ranges that no number of rows lies in: merged ones come in multiples of an extent.

    On the condition of such a range TVM knows that an extent is zero, and divides by it.
    """
    step = divisor(rows)
    bounds = sorted(ranges)
    starts = dict(zip(bounds, [0, *bounds], strict=False))
    return {
        bound: ranges[bound]
        for bound in bounds
        if bound // step > starts[bound] // step or bound == bounds[-1]
    }


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


def check_symbolic(problem: Matmul, rows: int) -> None:
    """Refuse a number of rows to choose for where they are known."""
    if isinstance(problem.m.extent, int):
        found = f"rows={rows} for M = {problem.m.extent}"
        raise cannot_schedule(f"block {problem.name}", found, "a symbolic M", "leave it out")


def _by_model(found: ProductSite, given: MatmulConfig) -> dict[int, int]:
    """Choose the ranges by the model; none if only one kernel is possible."""
    problem = found.problem
    m, n, k = problem.m.extent, problem.n.extent, problem.depth
    if isinstance(m, int) or not isinstance(n, int) or not isinstance(k, int):
        return {}
    if not found.is_outermost or _is_refused(problem, given):
        return {}  # what is refused is refused as one kernel, whose words name the tensor
    majors = problem.lhs.major, problem.rhs.major
    ranges = choose_ranges(
        n, k, problem.lhs.dtype, given, majors=majors, out_dtype=found.out_dtype,
        batch=problem.batch if isinstance(problem.batch, int) else SYMBOLIC_BATCH,
    )  # fmt: skip
    if not found.is_converted or len(ranges) < 2:
        return ranges
    few = {COLUMNS: COLUMNS}  # one kernel whose lanes decode
    return few | {bound: rows for bound, rows in ranges.items() if bound > COLUMNS}


def _is_refused(problem: Matmul, given: MatmulConfig) -> bool:
    """Tell a product of types that are refused, but for a sum of 16 bits."""
    wide = "float32" if problem.acc_dtype in HALF_DTYPES else None
    try:
        check_types(problem, replace(given, accumulate=wide))
    except HopperError:
        return True
    return False


def _has_symbols(func: Any) -> bool:
    shapes = [list(x.ty.shape) for x in func.params if tirx.is_buffer_var(x)]
    return any(ir.static_int(extent) is None for shape in shapes for extent in shape)
