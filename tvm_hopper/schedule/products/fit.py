"""Complete the configuration of a product in tiles, and check it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tvm import s_tir

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule import steps
from tvm_hopper.schedule.arguments import last_stage

from .classes import ClassKernel
from .config import ARCH, CONSUMERS, COOPERATIVE, MatmulConfig, find_violations, refuse_all
from .converted import choose_converted
from .field_values import TMA
from .model import choose_config
from .parts import for_any_rows
from .recognize import Matmul, find_swizzle_violations
from .ring_and_order import SYMBOLIC_EXTENT
from .staging import (
    EpilogueTypes,
    choose_staging,
    find_staging_violations,
    leaves_by_tma,
    takes_place,
    through_shared_memory,
)
from .tile_kernel import oriented


def fit(
    sch: s_tir.Schedule,
    problem: Matmul,
    kernel: ClassKernel,
    epilogue: EpilogueTypes,
    products: int = 1,
) -> tuple[MatmulConfig, str]:
    """Complete the configuration and check it; return it and the axis that consumers share.

    The columns of `problem` may be those of several products of as many columns each.

    A sampled size is checked by the smallest of its candidates, and the axis must serve them all.
    """
    dtype, config = problem.lhs.dtype, kernel.config
    epilogue = replace(epilogue, stored_bytes=problem.stored_bytes)
    is_open = config.tile is None
    is_depth_open = config.stages is None
    sizes = None
    if config.tile is not None:
        sizes = tuple(tuple(steps.candidates(sch, size)) for size in config.tile)
    rows, n, k = extents(problem, kernel)
    config = _with_consequences(problem, config, rows, epilogue)
    given = config = choose_converted(problem, kernel, config, epilogue.outputs)
    choose = partial(
        choose_config,
        n=n,
        k=k,
        dtype=dtype,
        sizes=sizes,
        majors=_majors(problem),
        out_dtype=epilogue.outputs[0],
        batch=problem.batch,
    )
    config = choose(rows, given=given)
    if kernel.is_open:  # tiles are ordered and distributed for as many as there may be
        few = not isinstance(rows, int) or rows < SYMBOLIC_EXTENT
        kept = (given if few else config).raster
        config = replace(config, raster=kept, persistent=given.persistent)
        config = choose(problem.m.extent, given=config)
    elif kernel.bounds and kernel.bounds[-1] > rows:
        kept = (config if config.transposed else given).raster
        given = replace(config, raster=kept, persistent=given.persistent)
        config = choose(kernel.bounds[-1], given=given)
    problem = oriented(problem, config)
    if sizes is None:
        sizes = tuple((size,) for size in config.tile or ())
    smallest = min(sizes[0]), min(sizes[1]), min(sizes[2])
    plain = config
    if not config.is_sampled:
        shape = problem.output.shape
        config = through_shared_memory(config, shape, epilogue)
        in_place = not kernel.apart and takes_place(config, shape, epilogue)
        epilogue = replace(epilogue, in_place=in_place)
        if is_open and leaves_by_tma(config, shape, dtype, epilogue, k, is_depth_open, ARCH):
            config = plain = replace(config, store=TMA)
    config = choose_staging(config, sizes, is_depth_open, dtype, epilogue, ARCH)
    if plain.store is None and not config.operand_slots:
        config = plain  # without operands there is no reason for another way out
    stages = config.num_stages or min(steps.candidates(sch, last_stage(config.stages))) + 1
    consumers = config.sharers
    where = f"block {problem.name}, tile {_in_words(sizes, products)}"
    stored = problem.stored_bytes
    broken = find_violations(smallest, stages, config, dtype, ARCH, products, stored)
    broken += find_staging_violations(smallest, stages, config, dtype, epilogue, ARCH)
    if broken:
        raise refuse_all(where, broken)
    for axis in ("m", "n"):
        if all(_divides(axis, m, n, consumers) for m in sizes[0] for n in sizes[1]):
            broken = find_swizzle_violations(problem, smallest, axis, config)
            if broken:
                raise refuse_all(where, broken)
            return config, axis
    legal = [c for c in CONSUMERS if c != consumers]
    raise cannot_schedule(
        where,
        f"candidates that {consumers} consumers cannot all share along one axis",
        f"multiples of {64 * consumers} rows, or of {8 * consumers} columns",
        f"or another number of consumers ({', '.join(map(str, legal))})",
    )


def _with_consequences(
    problem: Matmul, config: MatmulConfig, rows: Any, epilogue: EpilogueTypes
) -> MatmulConfig:
    """Fix what follows from a configuration and a product before anything is chosen."""
    if config.parts > 1:  # each output tile has blocks of its own
        config = replace(config, persistent=0)
    if not isinstance(problem.m.extent, int):
        config = for_any_rows(config, rows)
    if epilogue.operands and config.schedule is None:  # which TMA loads for consumers that share
        config = replace(config, schedule=COOPERATIVE)
    return config


def _in_words(sizes: tuple[tuple[int, ...], ...], products: int) -> str:
    """Return the sizes that the tile of each product can have, of those of all columns."""
    each = sizes[0], tuple(x // products for x in sizes[1]), sizes[2]
    return "x".join("/".join(map(str, x)) for x in each)


def extents(problem: Matmul, kernel: ClassKernel) -> tuple[Any, Any, Any]:
    """Return what a configuration is chosen for: a class has the rows of its bound."""
    rows = problem.m.extent if kernel.rows is None else kernel.rows
    return rows, problem.n.extent, problem.depth


def _majors(problem: Matmul) -> tuple[str, str]:
    return problem.lhs.major, problem.rhs.major


def _divides(axis: str, tile_m: int, tile_n: int, consumers: int) -> bool:
    parts = (consumers, 1) if axis == "m" else (1, consumers)
    return tile_m % (64 * parts[0]) == 0 and tile_n % (8 * parts[1]) == 0
