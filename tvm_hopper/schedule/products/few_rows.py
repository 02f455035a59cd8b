"""Choose between tiles, direct loads and dot products for few rows.

One row is dot products of plain threads, some more are multiplied by warps that load what they
multiply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import HALF_DTYPES, dtype_bytes
from tvm_hopper.requests import keys
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.transforms.mma_sync.decoded_fragments import LANES, WIDTHS
from tvm_hopper.transforms.mma_sync.lower_mma_sync_plan import VECTOR

from .classes import ClassKernel, product_of
from .config import MatmulConfig
from .converted import by_rows_of_converted
from .direct import apply_direct
from .direct_choice import (
    MOST_DECODED,
    choose_decoded,
    choose_direct_shape,
    estimate_direct,
)
from .direct_shape import MOST_ROWS as MOST_DIRECT, DirectShape, padded_rows, steps_of
from .dot_choice import choose_dots, choose_shape, estimate_dots, may_be_dots
from .dot_shape import MOST_ROWS, VECTOR_BYTES, DotShape
from .dots import apply_dots
from .field_values import DIRECT, DOTS, THREADS, TILES, WEIGHTS
from .model import rank_both
from .recognize import Matmul
from .staging import leaves_operands_open
from .thread_rates import ThreadKernel, asks_for_no_tile

BATCH = "a batch, or a sum over several axes; one product over one axis"


def may_be_few_rows(given: MatmulConfig) -> bool:
    """Tell whether a product may use dot products by default."""
    return given.has_tiles and may_be_dots(given)


def by_tiles(kernel: ClassKernel) -> ClassKernel:
    """Return the tiled kernel of a class, unless tiles are excluded by request."""
    if not may_be_few_rows(kernel.config):
        return kernel
    return replace(kernel, config=replace(kernel.config, form=TILES))


def by_threads(kernel: ClassKernel) -> ClassKernel:
    """Let threads load operands of an epilogue, as far as that was left open, and has tiles."""
    is_open = leaves_operands_open(kernel.config)
    is_open = is_open and (kernel.rows or MOST_ROWS + 1) > MOST_ROWS  # dot products go with none
    return replace(kernel, config=replace(kernel.config, store=THREADS)) if is_open else kernel


def trials_of(kernel: ClassKernel) -> list[tuple[bool, ClassKernel]]:
    """List a kernel, and whether it is the last, then others for what does not fit.

    The choice for the epilogue's operands may be the reason.
    """
    if not kernel.config.has_tiles or not leaves_operands_open(kernel.config):
        return [(True, kernel)]
    loaded = replace(kernel, config=replace(kernel.config, store=THREADS))
    return [(False, kernel), (False, replace(kernel, apart=True)), (True, loaded)]


def apply_few_rows(
    sch: Any,
    block: Any,
    problem: Matmul,
    kernel: ClassKernel,
    views: Sequence[Any],
    outputs: tuple[str, ...],
) -> Any:
    """Schedule a product without tiles by WGMMA, if it is to have none.

    - `sch` (Schedule)
    - `block` (SBlockRV): the multiply-add, in plain loops; its casts are inlined.
    - `problem`: the product.
    - `kernel`: what was requested.
    - `views` (sequence of Buffer): operands that are parts of tensors.
    - `outputs`: types of what the kernel leaves in memory.
    - returns (SBlockRV or None): the block that adds up the parts of sums; None: tiles take it.
    - raises ScheduleError: it was requested, and cannot serve the product.
    """
    if dots := find_dots(problem, kernel, views, outputs):
        return apply_dots(sch, block, problem, dots, len(outputs))
    if direct := find_direct(problem, kernel, views, outputs):
        return apply_direct(sch, block, problem, direct, len(outputs))
    if kernel.config.early_launch == WEIGHTS:
        raise cannot_schedule(
            f"block {problem.name}, early_launch={WEIGHTS!r}",
            "tiles, whose weights come through shared memory",
            "few rows, whose weights each thread loads itself",
            f"request form={DIRECT!r}, or leave early_launch out",
        )
    return None


def form_of_converted(
    problem: Matmul, kernel: ClassKernel, views: Sequence[Any], outputs: tuple[str, ...]
) -> ClassKernel:
    """Choose between lanes that decode a converted operand, and tiles of its rows.

    - raises ScheduleError: something else was requested.
    """
    config = kernel.config
    if config.direct:
        return kernel
    tiles = replace(kernel, config=by_rows_of_converted(problem, config))
    rows = problem.m.extent if kernel.rows is None else kernel.rows
    is_open = config.form is None and asks_for_no_tile(config)
    if not is_open or _unserved_directly(problem, rows, views) or rows > MOST_DECODED:
        return tiles
    wanted, chip = product_of(problem, kernel, outputs), chip_of_target()
    found = choose_decoded(wanted, problem.rhs.run, chip)
    best = next(iter(rank_both(wanted, tiles.config, chip, 1)), None)
    if found is None or (best is not None and best.microseconds <= found[1]):
        return tiles
    return replace(kernel, config=replace(config, form=DIRECT))


def find_dots(
    problem: Matmul, kernel: ClassKernel, views: Sequence[Any], outputs: tuple[str, ...]
) -> ThreadKernel[DotShape] | None:
    """Return how a product is computed as dot products, None where tensor cores take it."""
    config = kernel.config
    if not may_be_dots(config):
        return None
    rows = problem.m.extent if kernel.rows is None else kernel.rows
    if why := _unserved_as_dots(problem, rows, views):
        if config.dots:
            found, _, need = why.partition("; ")
            fix = "leave form out: tensor cores take it"
            raise cannot_schedule(f"block {problem.name}, form={DOTS!r}", found, need, fix)
        return None
    wanted, chip = product_of(problem, kernel, outputs), chip_of_target()
    time = estimate_dots(wanted, chip)
    shape = choose_shape(rows, wanted.n, wanted.k, wanted.dtype, chip)
    chosen = f"{shape}: {time:.1f} us by estimate"
    if isinstance(config.form, DotShape):
        shape = config.form
        chosen = str(shape)
    elif config.form is None:
        best, *_ = rank_both(wanted, config, chip, 1)
        if not choose_dots(wanted, config, best.microseconds, chip):
            return None
        chosen += f"; then {best}"
    return _kernel(problem, kernel, rows, shape, chosen, time)


def find_direct(
    problem: Matmul, kernel: ClassKernel, views: Sequence[Any], outputs: tuple[str, ...]
) -> ThreadKernel[DirectShape] | None:
    """Return how warps compute a product from what they load, None unless it was requested."""
    config = kernel.config
    if not config.direct:
        return None
    where = f"block {problem.name}, form={DIRECT!r}"
    rows = problem.m.extent if kernel.rows is None else kernel.rows
    if why := _unserved_directly(problem, rows, views):
        found, _, need = why.partition("; ")
        raise cannot_schedule(where, found, need, "leave form out: tiles take it")
    wanted, chip = product_of(problem, kernel, outputs), chip_of_target()
    time = estimate_direct(wanted, chip)
    along_k = problem.rhs.major == "k"
    if isinstance(config.form, DirectShape):
        shape, estimated = config.form, ""
        columns, depth = steps_of(along_k, problem.rhs.run or VECTOR)
        if shape.columns % columns or shape.depth % depth:
            found = f"{shape.columns} columns and a depth of {shape.depth}"
            need = f"multiples of {columns} and {depth} for the rows of {problem.rhs.name}"
            raise cannot_schedule(where, found, need)
        if why := shape.shortfall(padded_rows(rows), problem.rhs.stored_bytes or 2):
            found, _, need = why.partition("; ")
            raise cannot_schedule(where, found, need)
    else:
        shape = choose_direct_shape(rows, along_k)
        if problem.stored_bytes:
            decoded = choose_decoded(replace(wanted, m=rows), problem.rhs.run, chip)
            if decoded is None:
                need = "rows and a depth of which registers hold a step, at most 16 rows of some"
                raise cannot_schedule(where, f"{rows} rows", need, "leave form out: tiles take it")
            shape, time = decoded
        estimated = f": {time:.1f} us by estimate"
    chosen = f"fragments from memory, {shape}{estimated}"
    return _kernel(problem, kernel, padded_rows(rows), shape, chosen, time)


def _kernel(
    problem: Matmul, kernel: ClassKernel, rows: int, shape: Any, chosen: str, time: float
) -> ThreadKernel[Any]:
    """Return the plan of a product; a size class notes for how many rows it was chosen."""
    tenths = min(max(1, round(10 * time)), keys.INT32_MAX)
    chosen_for = () if kernel.rows is None else (kernel.rows, tenths)
    early = kernel.config.early_launch == WEIGHTS
    return ThreadKernel(rows, shape, chosen, chosen_for, problem.acc_dtype != "float32", early)


def _unserved_directly(problem: Matmul, rows: Any, views: Sequence[Any]) -> str:
    """Say why warps cannot load what they multiply, and what can; empty if they can."""
    if why := _unserved(problem, rows, views, MOST_DIRECT):
        return why
    if problem.stored_bytes:
        name = (problem.rhs if problem.rhs.stored_bytes else problem.lhs).name
        run, extent = problem.rhs.run, problem.k.extent
        if run not in WIDTHS:
            widths = ", ".join(map(str, reversed(WIDTHS)))
            found = f"{name}, of which 16 stored bytes make {run or 'no'} neighbours along k"
            return f"{found}; one of {widths}, of the right operand"
        if extent % (LANES * run):
            return f"K = {extent}; a multiple of {LANES * run} for {name}, {run} in 16 stored bytes"
    runs, extent = ("K", problem.k.extent) if problem.rhs.major == "k" else ("N", problem.n.extent)
    if extent % VECTOR:
        return f"{runs} = {extent}, along which the rows of B run; a multiple of {VECTOR}"
    return ""


def _unserved_as_dots(problem: Matmul, rows: Any, views: Sequence[Any]) -> str:
    """Say why a product cannot be computed as dot products, and what can; empty if it can."""
    for operand in (problem.lhs, problem.rhs):
        if operand.major != "k":
            return f"{operand.name} with rows that do not run along k; A[m, k] and B[n, k]"
    if why := _unserved(problem, rows, views, MOST_ROWS):
        return why
    vector = VECTOR_BYTES // dtype_bytes(problem.rhs.dtype)
    if problem.k.extent % vector:
        return f"K = {problem.k.extent}; a multiple of {vector}"
    return ""


def _unserved(problem: Matmul, rows: Any, views: Sequence[Any], most: int) -> str:
    """Say why threads cannot load operands for themselves, and what can; empty if they can."""
    if problem.has_batch:
        return BATCH
    if problem.lhs.dtype not in HALF_DTYPES:
        return f"operands of {problem.lhs.dtype}; {' or '.join(HALF_DTYPES)}"
    for operand in (problem.lhs, problem.rhs):
        if len(operand.buffer.ty.strides) or any(operand.buffer.same_as(x) for x in views):
            return "an operand that is a part of a tensor, or has strides; whole compact tensors"
    if not isinstance(rows, int) or rows > most:
        return f"{rows} rows; at most {most}, or a size class of as many"
    for name, axis in (("N", problem.n), ("K", problem.k)):
        if not isinstance(axis.extent, int):
            return f"{name} = {axis.extent}, symbolic; static N and K"
    if not problem.starts_from_zero:
        return "a sum that does not start from zero; one that does, with the rest after it"
    return ""
