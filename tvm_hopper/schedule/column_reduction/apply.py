"""`column_reduction`: schedule reductions over rows; each tensor is read once.

  hs.column_reduction(sch)
->
  blockIdx.x            strips of columns, and parts of their rows
    threadIdx.y, x      a thread's columns: its own sums in registers
      for rows of the part:
        load X          vectors, several rows in flight
        sum += X
      partial[j, part] = sum
  blockIdx.x            columns: rows of `partial`, a kernel of row reductions
    S[j] = sum(partial[j, :]), in a fixed order
    Y[j] = g(S[j])

`partial` is float32, or what the sums are, in memory that belongs to the built function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import IndexMap

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.requests import keys
from tvm_hopper.schedule.memory_bound.blocks import WholeFunction
from tvm_hopper.schedule.memory_bound.inline import inline_parts
from tvm_hopper.schedule.memory_bound.partial import (
    leave_columns,
    leave_groups,
    leave_partial,
    pack_partial,
)
from tvm_hopper.schedule.memory_bound.program import MemoryProgram, Part, block_names, is_plain
from tvm_hopper.schedule.memory_bound.tiles import first_of_row, flat, sum_bytes, whole_vector
from tvm_hopper.schedule.row_reduction.apply import schedule_rest
from tvm_hopper.schedule.row_reduction.config import RowReductionConfig, of_partial

from .config import ColumnReductionConfig, config_of
from .model import ColumnTile, ColumnWork, choose_columns, choose_group
from .recognize import ColumnProgram, check_apart, find_columns
from .recognize_strips import find_strips
from .strips import find_few_rows, schedule_strips

HELPER = "column_reduction"
OF_GROUPS = RowReductionConfig(early_launch=True)


def column_reduction(
    sch: s_tir.Schedule,
    block: Any = None,
    config: ColumnReductionConfig | None = None,
    *,
    blocks: Sequence[Any] | None = None,
) -> None:
    """Schedule a function that reduces dimensions in front of others; results are deterministic.

    Sums over all dimensions but the last ones are two kernels, and each tensor is read once. Other
    programs, as a softmax over a middle dimension, are one kernel that keeps columns in registers.
    Longer columns are read again by each reduction that needs another one's result, and are shared
    by thread blocks. Partial results go to a workspace and are combined in a fixed order. A call
    takes the workspace from the allocator of its tensors' library (PyTorch's keeps streams apart).
    With TVM's own tensors it comes from the thread's pool, and the calls of one thread must share
    one stream.

    Parameters
    ----------
    sch : Schedule
        Changed in place; left as it was when the program is refused. The function that it works on
        is plain loops: reductions over neighbouring dimensions, of which the last one is none,
        elementwise blocks before them, and blocks that compute with what they leave.
    block : SBlockRV or str, optional
        One of its blocks, to say which function is meant.
    config : ColumnReductionConfig, optional
        Threads, vectors and so on; fields left out are chosen from the shape.
    blocks : sequence of SBlockRV or str, optional
        The blocks to schedule, as if there were no others. Default: all of them. Others are left
        for separate calls, or for TVM's primitives. What they read of these blocks is stored.

    Raises
    ------
    ScheduleError
        The function is not a supported program of column reductions, or the configuration does not
        fit it.
    """
    RULE.schedule(sch, block, config, blocks)


def chosen_columns(
    sch: s_tir.Schedule, config: ColumnReductionConfig | None = None
) -> ColumnReductionConfig:
    """Return what `column_reduction` does with a program: a configuration with nothing left open.

    - `sch`: as for `column_reduction`; left as it is.
    - raises ScheduleError: the same as from `column_reduction`.
    """
    return RULE.chosen(sch, config)


def _apply(program: MemoryProgram, given: ColumnReductionConfig) -> ColumnReductionConfig:
    """Schedule a program; return what was chosen for the kernel that reads its tensors."""
    sch, parts = program.sch, inline_parts(program)
    if (strips := find_strips(parts)) is not None:
        return schedule_strips(program, strips, given)
    check_apart(parts)
    reductions = [p for p in parts if p.reduced]
    whole = bool(reductions) and not any(p.spatial for p in reductions)
    group = _group(reductions, given) if whole else None
    if given.group is not None and group is None:
        found, need = f"group={given.group}", "a reduction of all elements to one value"
        raise cannot_schedule("ColumnReductionConfig", found, need)
    if group is not None:
        groups = leave_groups(sch, reductions, group)
        # the last kernel: one row of all groups
        schedule_rest(sch, OF_GROUPS, groups | program.other)
        schedule_rest(sch, OF_GROUPS, block_names(sch) - groups)
        return ColumnReductionConfig(group=group)
    if whole:
        made = leave_columns(sch, parts)
        # the last kernel: one row of all columns
        schedule_rest(sch, RowReductionConfig(), made | program.other)
        parts = MemoryProgram.parse(sch, HELPER, block_names(sch) - made).parts
    columns = find_columns(parts)
    sums = [p for p in parts if p.name in columns.sums]
    tensors = _tensors(sums)
    tile, text = _choose(columns, sums, tensors, given)
    if not whole and (few := find_few_rows(sch, parts, columns, tile, given)) is not None:
        return schedule_strips(program, few, given)
    count = len(columns.columns)
    loads = [_read_rows(sch, sums, x, count) if len(x.shape) > 2 else x for x in tensors]
    partial = [leave_partial(sch, part, tile.parts, tile.flight) for part in sums]
    names = block_names(sch) - {p.name for p in parts}
    second = replace(of_partial(tile.vector, tile.parts), early_launch=True)
    schedule_rest(sch, second, names)  # of what the first leaves, as long as no loop is cut
    for one in partial:
        _split_rows(sch, one, tile)
    _first_kernel(sch, partial, loads, tile, text)
    return config_of(tile)


def _group(reductions: list[Part], given: ColumnReductionConfig) -> int | None:
    """Return how many neighbours of the first dimension are reduced together; None: columns are."""
    extents = [ir.static_int(x.dom.extent) for x in reductions[0].reduced]
    if len(extents) < 2:
        return None
    if given == ColumnReductionConfig():
        return choose_group(extents) if all(len(p.outputs) == 1 for p in reductions) else None
    if given.group is not None and (extents[0] is None or extents[0] % given.group):
        found = f"group={given.group} of {extents[0] or 'an unknown number of'} rows"
        raise cannot_schedule("ColumnReductionConfig", found, "a divisor of the first dimension")
    if given.group is not None and given.group == extents[0]:
        need = "two groups or more: their values are a row"
        raise cannot_schedule("ColumnReductionConfig", f"group={given.group} of as many rows", need)
    return given.group


def _tensors(sums: list[Part]) -> list[Any]:
    """Return the tensors with a value for each element, in the order that they are read."""
    found: list[Any] = []
    for part in sums:
        variables = [x.var for x in part.by_column]
        for load in part.loads:
            known = any(load.source.same_as(x) for x in found)
            if not known and is_plain(load, variables):
                found.append(load.source)
    return found


def _choose(
    program: ColumnProgram, sums: list[Part], tensors: list[Any], given: ColumnReductionConfig
) -> tuple[ColumnTile, str]:
    count = [ir.static_int(x) for x in program.rows]
    columns = prod(ir.static_int(x) or 0 for x in program.columns)
    side = ir.static_int(program.columns[-1])  # by side in each tensor, and in the rest
    where = f" for {side} columns"
    work = ColumnWork(
        rows=None if None in count else prod(x or 0 for x in count),
        columns=columns,
        vector=whole_vector("ColumnReductionConfig", where, side, tensors, given.vector),
        loaded=sum_bytes(tensors),
        written=sum_bytes(x for p in sums for x in p.outputs),
    )
    return choose_columns(work, given)


def _split_rows(sch: s_tir.Schedule, partial: Any, tile: ColumnTile) -> None:
    """Deal out rows and columns of partial results to thread blocks and threads."""
    column, trip, share, flight = sch.get_loops(partial)
    strip, thread, element = sch.split(column, [None, tile.threads, tile.vector])
    blocks, below = sch.split(share, [tile.blocks, tile.rows])
    sch.reorder(strip, blocks, below, thread, trip, flight, element)


def _first_kernel(
    sch: s_tir.Schedule,
    partial: list[Any],
    loads: list[Any],
    tile: ColumnTile,
    text: str,
) -> None:
    trips = [sch.get_loops(x)[4] for x in partial]
    if len(trips) > 1:
        sch.merge(*trips)
    # All loops are bound before a block is added: TVM asks then whether rows behind the end of a
    # part still belong to one variable, and its answer is no.
    strip, blocks, below, thread, *_ = sch.get_loops(partial[0])
    grid = sch.fuse(strip, blocks)
    sch.bind(grid, "blockIdx.x")
    sch.bind(below, "threadIdx.y")
    sch.bind(thread, "threadIdx.x")
    sch.annotate(grid, keys.MEMORY_BOUND, keys.COLUMN_REDUCTION)
    sch.annotate(grid, keys.CHOSEN, text)
    sch.annotate(grid, keys.BLOCKS_PER_SM, tile.blocks_per_sm)
    sch.annotate(grid, keys.EARLY_LAUNCH, 1)  # and lets the second begin while it ends
    for block in partial:
        *_, flight, element = sch.get_loops(block)
        sch.unroll(flight)
        sch.unroll(element)
    for load in loads:
        _load(sch, partial, load, tile)
    for block in partial:
        count = len(sch.get(block).writes)
        for store in [sch.cache_write(block, i, "local") for i in range(count)]:
            sch.reverse_compute_at(store, sch.get_loops(block)[2])
            if tile.vector > 1:
                sch.vectorize(sch.get_loops(store)[-1])
            pack_partial(sch, store, tile.vector)


def _read_rows(sch: s_tir.Schedule, sums: list[Part], tensor: Any, num_columns: int) -> Any:
    """Read a tensor of several dimensions of rows by the number of the row, and of the column.

    In front of everything else: of three dimensions and more TVM does not find the number again
    once it is a sum of loops.
    """
    load = _read(sch, [x.block for x in sums], tensor)
    shape = list(tensor.shape)
    first = first_of_row(shape, num_columns)
    dtype = ir.dtype_of(sch.get(load).iter_vars[0].var)

    def index(*i: Any) -> list[Any]:
        row = flat(i[:first], shape[:first]) or [tirx.IntImm(dtype, 0)]
        return [*row, *flat(i[first:], shape[first:])]

    sch.transform_layout(load, ("write", 0), index)
    sch.transform_block_layout(load, IndexMap.from_func(index, len(shape), index_dtype=dtype))
    return load


def _read(sch: s_tir.Schedule, blocks: list[Any], tensor: Any) -> Any:
    readers = [x for x in blocks if _position(sch, x, tensor) is not None]
    where = _position(sch, readers[0], tensor)
    return sch.cache_read(readers[0], where, "local", consumer_blocks=readers)


def _load(sch: s_tir.Schedule, partial: list[Any], load: Any, tile: ColumnTile) -> None:
    """Load the rows of one iteration for all reductions that read them."""
    if not isinstance(load, SBlockRV):
        load = _read(sch, partial, load)
    made = sch.get(load).writes[0].source
    readers = [x for x in partial if _position(sch, x, made) is not None]
    sch.compute_at(load, sch.get_loops(readers[0])[3], preserve_unit_loops=True)  # of one row, too
    *_, flight, element = sch.get_loops(load)
    sch.unroll(flight)
    if tile.vector > 1:
        sch.vectorize(element)
    else:
        sch.unroll(element)


def _position(sch: s_tir.Schedule, block: Any, tensor: Any) -> int | None:
    regions = sch.get(block).reads
    return next((i for i, x in enumerate(regions) if x.source.same_as(tensor)), None)


RULE = WholeFunction(HELPER, ColumnReductionConfig, "plain loops over rows and columns", _apply)
