"""`pointwise`: schedule an elementwise program.

  hs.pointwise(sch)
->
  blockIdx.x      tiles of all elements
    load X, Y     vectors, all in flight: threadIdx.x
    Z = f(X, Y)   in registers
    store Z
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.requests import keys
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.schedule.memory_bound.arrays import Read, find_reads
from tvm_hopper.schedule.memory_bound.blocks import WholeFunction
from tvm_hopper.schedule.memory_bound.inline import inline_moves, inline_parts, is_dear
from tvm_hopper.schedule.memory_bound.nests import (
    WHOLE_VECTORS,
    Nest,
    Work,
    bind_blocks,
    hint_loads,
    in_memory,
    keep_end,
    keep_in_registers,
    merge,
    row_loop,
)
from tvm_hopper.schedule.memory_bound.program import MemoryProgram, Part, results
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile, deal_out, sum_bytes, whole_vector
from tvm_hopper.schedule.memory_bound.widen import HALVES

from .columns import find_choices, find_columns_read
from .config import PointwiseConfig
from .model import ElementChoice, choose_elements
from .recognize import ElementProgram, check_elements, find_elements, group_by_shape, numbered_along
from .shared import find_gathered, find_span, vector_of_neighbours
from .transpose import apply_transposition, find_transposition
from .windows import check_producers, deal_out_window

HELPER = "pointwise"
FLAT = 16  # elements that are numbered all along: VectorizeAccesses takes the last ones apart


def pointwise(
    sch: s_tir.Schedule,
    block: Any = None,
    config: PointwiseConfig | None = None,
    *,
    blocks: Sequence[Any] | None = None,
) -> None:
    """Schedule elementwise blocks as one kernel.

    Parameters
    ----------
    sch : Schedule
        Changed in place; left as it was when the program is refused. The function that it works on
        is plain loops over elements: any graph of them, with casts, broadcasts and several outputs
        of one shape.
    block : SBlockRV or str, optional
        One of its blocks, to say which function is meant.
    config : PointwiseConfig, optional
        Threads and vectors; fields left out are chosen from the shape.
    blocks : sequence of SBlockRV or str, optional
        The blocks to schedule, one kernel of the function; default: all of them. Others are left
        for separate calls, or for TVM's primitives. What they read of these blocks is stored.

    Raises
    ------
    ScheduleError
        The blocks are not elementwise or cannot be one kernel, or the configuration does not fit.
    """
    RULE.schedule(sch, block, config, blocks)


def chosen_elements(sch: s_tir.Schedule, config: PointwiseConfig | None = None) -> PointwiseConfig:
    """Return what `pointwise` does with a program: a configuration with nothing left open.

    What it leaves open goes without saying: a transposition has no vectors of a thread. Of several
    kernels it is that of the first one.

    - `sch`: as for `pointwise`; left as it is.
    - `config`: what is decided already.
    - raises ScheduleError: the same as from `pointwise`.
    """
    return RULE.chosen(sch, config)


def _apply(program: MemoryProgram, given: PointwiseConfig) -> PointwiseConfig:
    """Schedule a program; return what was chosen for its first kernel."""
    columns, sch = find_columns_read(program), program.sch
    check_producers(program)
    inline_moves(program, columns)
    parts = inline_parts(program, kept=columns | find_choices(program))
    groups = group_by_shape(parts, results(sch, parts))
    choices = [_apply_kernel(sch, group, given, columns) for group in groups]
    return choices[0]


def _apply_kernel(
    sch: s_tir.Schedule, parts: list[Part], given: PointwiseConfig, columns: frozenset[str]
) -> PointwiseConfig:
    """Schedule blocks of one shape as one kernel."""
    check_elements(parts)
    loads = [p for p in parts if p.name in columns]
    crossed = None if any(p.reduced for p in parts) else find_transposition(sch, parts, given)
    if crossed is not None:
        return apply_transposition(sch, crossed, given)
    reads = _find_reads(sch, parts)
    if any(p.reduced for p in parts) and given.chunks is None:
        given = replace(given, chunks=1)  # what a window reads is enough in flight
    program = find_elements(parts, reads, by_rows=bool(loads))
    full = frozenset(p.name for p in parts)
    written = in_memory(sch, parts, full)
    choice = _choose(program, parts, loads, reads, written, given)
    tile = choice.tile
    names = frozenset(p.name for p in loads)
    nests = keep_in_registers(sch, parts, full, program.rows, program.row, reads, tile, names)

    shared = [x for x in nests if x.work is Work.LOAD_COLUMNS]
    block = merge(sch, [_tile_loop(sch, x, program, tile) for x in nests if x not in shared])
    for nest in shared:
        sch.compute_at(nest.block, block, index=0)
        deal_out(sch, list(sch.get_loops(nest.block))[-1], tile, whole=True)
    bind_blocks(sch, block, keys.POINTWISE, choice.text, choice.blocks, given.early_launch)
    if choice.together > 1:
        sch.annotate(block, keys.LAUNCHED_TOGETHER, choice.together)
    if choice.hint:
        hint_loads(sch, nests)
        keep_end(sch, block, tile.columns * sum_bytes(written), chip_of_target().l2_bytes)
    return replace(choice.config, early_launch=given.early_launch)


def _find_reads(sch: s_tir.Schedule, parts: list[Part]) -> list[Read]:
    """Return the tensors that elementwise blocks load at the element that they compute."""
    made = [x for p in parts if p.reduced for x in p.outputs]  # windows load for themselves
    reads = find_reads(sch, [p for p in parts if not p.reduced])
    reads = [x for x in reads if not any(x.tensor.same_as(y) for y in made)]
    return numbered_along(parts, reads)


def _choose(
    program: ElementProgram,
    parts: list[Part],
    loads: list[Part],
    reads: list[Read],
    written: list[Any],
    given: PointwiseConfig,
) -> ElementChoice:
    """Choose the configuration of blocks of which `loads` only load a part of a tensor."""
    tensors = [*(x.tensor for x in reads), *written, *(p.loads[0].source for p in loads)]
    vector = _vector(program, tensors, given.vector)
    if given.vector is None:
        vector = vector_of_neighbours(program, parts, reads, vector)
    rounded = all(ir.dtype_of(x) in HALVES for x in written)  # functions are short ones then
    dear = not rounded and any(is_dear(p.store.value) for p in parts)
    every = [*reads, *(Read(p.outputs[0], (), True) for p in loads)] or find_gathered(parts)
    span = find_span(parts, reads)
    return choose_elements(program, tensors, every, vector, dear, given, span)


def _tile_loop(sch: s_tir.Schedule, nest: Nest, program: ElementProgram, tile: RegisterTile) -> Any:
    """Cut a nest into tiles; return the one loop over all of them."""
    whole = nest.work in WHOLE_VECTORS
    loops = list(sch.get_loops(nest.block))
    if not program.rows:
        if nest.work is Work.WINDOW:
            return deal_out_window(sch, nest.block, 0, tile)
        return deal_out(sch, loops[0], tile, whole=whole)
    if nest.work is Work.WINDOW:
        return sch.fuse(loops[0], deal_out_window(sch, nest.block, 1, tile))
    row = row_loop(sch, nest)
    outer = deal_out(sch, loops[-1], tile, whole=whole)
    return sch.fuse(row, outer)


def _vector(program: ElementProgram, tensors: list[Any], wanted: int | None) -> int:
    """Return the elements of a vector, of which all elements, or a row, need not be a multiple.

    Rows begin at a multiple of it: tensors are loaded by whole vectors, but for the last one.
    """
    columns = program.columns if program.rows else FLAT
    where = f" for rows of {columns} elements" if program.rows else ""
    return whole_vector("PointwiseConfig", where, columns, tensors, wanted)


RULE = WholeFunction(HELPER, PointwiseConfig, "plain loops over elements", _apply)
