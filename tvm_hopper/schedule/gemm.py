"""A whole matmul kernel in one call, made of the steps in `steps.py` and of TVM's primitives.

  hs.matmul(sch, "C")
->
  blockIdx.y   tiles of rows
    blockIdx.x   tiles of columns
      threadIdx.y  consumer warp groups
        accumulator = 0
        for k0: copy A's tile, copy B's tile, multiply-add        (pipelined)
        store the accumulator, with the epilogue inlined
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir
from tvm.tirx import IndexMap

from tvm_hopper import keys
from tvm_hopper.errors import cannot_schedule

from . import fuse, steps
from .choose import choose_config
from .config import (
    CONSUMERS,
    MatmulConfig,
    find_violations,
    most_stages,
    refuse_all,
    split_axis,
)
from .recognise import Matmul, Operand, check_operands, check_product, find_matmul

DEFAULT_STAGES = 4


def matmul(sch: s_tir.Schedule, block: Any, config: MatmulConfig | None = None) -> None:
    """Schedule one matmul block, its casts and its epilogue as a Hopper kernel.

    Parameters
    ----------
    sch : Schedule
        Changed in place; left as it was when the matmul is refused.
    block : SBlockRV or str
        The multiply-add, in plain loops.
    config : MatmulConfig, optional
        How to cut it up; chosen from the shape when left out.

    Raises
    ------
    ScheduleError
        The block is no matmul that can be served, or the configuration does not fit it.
    """
    # everything that can be refused is refused on a copy, in which random variables stay valid
    _schedule(sch.copy(), block, config)
    _schedule(sch, block, config)


def _schedule(sch: s_tir.Schedule, block: Any, config: MatmulConfig | None) -> None:
    block = fuse.as_block(sch, block)
    name = sch.get(block).name_hint
    try:
        _apply(sch, block, config)
    except s_tir.ScheduleError as error:
        found = f"what TVM cannot schedule ({fuse.tvm_reason(error)})"
        raise cannot_schedule(f"block {name}", found, "a plain matmul") from error


def _apply(sch: s_tir.Schedule, block: Any, config: MatmulConfig | None) -> None:
    check_product(sch, block)
    fuse.fuse_prologue(sch, block)
    problem = find_matmul(sch, block)
    if config is None:
        config = choose_config(*(a.extent for a in (problem.m, problem.n, problem.k)))
    check_operands(problem, config.accumulate)
    axis, last_stage = _fit(sch, problem, config)
    tile_m, tile_n, tile_k = config.tile

    steps.pad(sch, block, config.tile)
    problem = find_matmul(sch, block)  # its operands may be pads now
    loops = sch.get_loops(block)
    lead = [loops[a.loop] for a in problem.lead if a.loop >= 0]
    m, n, k = (loops[a.loop] for a in (problem.m, problem.n, problem.k))
    m_outer, m_tile = sch.split(m, [None, tile_m])
    n_outer, n_tile = sch.split(n, [None, tile_n])
    k_outer, k_inner = sch.split(k, [None, tile_k])
    if axis == "m":
        part, m_tile = sch.split(m_tile, [config.consumers, None])
    else:
        part, n_tile = sch.split(n_tile, [config.consumers, None])
    sch.reorder(*lead, m_outer, n_outer, part, k_outer, m_tile, n_tile, k_inner)
    rows = sch.fuse(*lead, m_outer) if lead else m_outer
    sch.bind(rows, "blockIdx.y")
    sch.bind(n_outer, "blockIdx.x")
    sch.bind(part, "threadIdx.y")
    if config.raster_group is not None:
        sch.annotate(n_outer, keys.RASTER_GROUP, config.raster_group)

    store = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(store, part)
    for operand in (problem.lhs, problem.rhs):
        copy = sch.cache_read(block, _read_index(sch, block, operand), "shared.dyn")
        sch.compute_at(copy, k_outer)
        steps.async_copy(sch, copy, swizzle=config.swizzle)
        _drop_unit_dims(sch, copy, operand.kept)
    fuse.fuse_epilogue(sch, store)
    _drop_unit_dims(sch, block, problem.output_kept)
    steps.wgmma(sch, block, accumulate=_accumulate(problem, config))
    steps.pipeline(
        sch,
        k_outer,
        roles=config.roles,
        last_stage=last_stage,
        wgmma_pending=config.wgmma_pending,
    )


def _fit(sch: s_tir.Schedule, problem: Matmul, config: MatmulConfig) -> tuple[str, Any]:
    """Check the configuration against the chip; return the consumers' axis and the last stage.

    A sampled size is judged by the smallest of its candidates, and the axis must serve them all.
    """
    dtype = problem.lhs.dtype
    sizes = [steps.candidates(sch, size) for size in config.tile]
    smallest = min(sizes[0]), min(sizes[1]), min(sizes[2])
    largest = max(sizes[0]), max(sizes[1]), max(sizes[2])
    last_stage = config.last_stage
    if config.stages is not None:
        last_stage = config.stages - 1
    if last_stage is None:
        last_stage = max(1, min(DEFAULT_STAGES, most_stages(largest, dtype))) - 1
    stages = min(steps.candidates(sch, last_stage)) + 1
    where = f"block {problem.name}, tile {'x'.join('/'.join(map(str, s)) for s in sizes)}"
    broken = find_violations(smallest, stages, config, dtype)
    if broken:
        raise refuse_all(where, broken)
    axes = {split_axis(m, n, config.consumers) for m in sizes[0] for n in sizes[1]}
    if "" not in axes and len(axes) == 1:
        return axes.pop(), last_stage
    for axis in ("m", "n"):  # rows and columns may both do for some candidates
        if all(_divides(axis, m, n, config.consumers) for m in sizes[0] for n in sizes[1]):
            return axis, last_stage
    legal = [c for c in CONSUMERS if c != config.consumers]
    raise cannot_schedule(
        where,
        f"candidates that {config.consumers} consumers cannot all share along one axis",
        f"multiples of {64 * config.consumers} rows, or of {8 * config.consumers} columns",
        f"or another number of consumers ({', '.join(map(str, legal))})",
    )


def _divides(axis: str, tile_m: int, tile_n: int, consumers: int) -> bool:
    parts = (consumers, 1) if axis == "m" else (1, consumers)
    return tile_m % (64 * parts[0]) == 0 and tile_n % (8 * parts[1]) == 0


def _read_index(sch: s_tir.Schedule, block: Any, operand: Operand) -> int:
    """Return which of the block's reads is an operand."""
    reads = sch.get(block).reads
    return next(i for i, region in enumerate(reads) if region.source.same_as(operand.buffer))


def _drop_unit_dims(sch: s_tir.Schedule, block: Any, kept: tuple[int, ...]) -> None:
    """Give the tile that a block writes two dimensions, whatever the tensor has in front."""
    rank = len(sch.get(block).writes[0].source.shape)
    if rank == len(kept):
        return
    tile = IndexMap.from_func(lambda *i: [i[d] for d in kept], ndim=rank, index_dtype="int32")
    sch.transform_layout(block, ("write", 0), tile)


def _accumulate(problem: Matmul, config: MatmulConfig) -> str | None:
    """Return the accumulator's type when it is not the block's own."""
    return config.accumulate if problem.acc_dtype != config.accumulate else None
