"""`row_reduction`: schedule reductions of rows in one pass over memory.

  hs.row_reduction(sch)
->
  blockIdx.x        thread blocks
    threadIdx.y     rows of one
      load W, X     vectors, all in flight: threadIdx.x
      S = sum       of registers, then across the row's threads
      Y = f(X, S)   in registers
      store Y
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.errors import ScheduleError, cannot_schedule
from tvm_hopper.requests import keys
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.schedule import origins
from tvm_hopper.schedule.arguments import as_block, check_program, check_type
from tvm_hopper.schedule.memory_bound.arrays import find_reads, load_again
from tvm_hopper.schedule.memory_bound.blocks import parse_blocks
from tvm_hopper.schedule.memory_bound.inline import inline_parts
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
    number_elements,
    one_thread,
    row_loop,
)
from tvm_hopper.schedule.memory_bound.program import MemoryProgram, Part, is_column_sum
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile, deal_out, sum_bytes
from tvm_hopper.schedule.memory_bound.work import PersistentWork, RowWork
from tvm_hopper.schedule.reasons import TVM_ERRORS, as_refusal
from tvm_hopper.schedule.trial import as_one_step, rehearse, thrown_away_if_refused, twin

from .choice import RowChoice, begin_together, keeps_end
from .config import RowReductionConfig
from .count_work import count_work
from .model import choose_rows
from .number import inline_rows
from .persistent import schedule_persistent, split_program
from .persistent_model import choose_persistent, find_work
from .recognize import RowProgram, find_rows
from .shared_model import hold_rows, keep_shared
from .split import EARLY, find_late, read_late
from .stage import ask_for_bulk, stage_rows
from .stream import Pass, deal_out_passes, plan_passes, read_apart

HELPER, NEED = "row_reduction", "plain loops over whole rows"


def row_reduction(
    sch: s_tir.Schedule,
    block: Any = None,
    config: RowReductionConfig | None = None,
    *,
    blocks: Sequence[Any] | None = None,
) -> None:
    """Schedule a function of row reductions and what surrounds them as one kernel.

    Each tensor is read from memory once: a row stays in registers. If the function also sums
    columns, partial sums are kept in a workspace, as in `column_reduction`.

    Parameters
    ----------
    sch : Schedule
        Changed in place; left as it was when the program is refused. The function that it works on
        is plain loops: reductions over the last dimension, or over several that are the last ones
        side by side, and elementwise blocks around them.
    block : SBlockRV or str, optional
        One of its reductions, to say which is meant.
    config : RowReductionConfig, optional
        Threads, vectors and so on; fields left out are chosen from the shape.
    blocks : sequence of SBlockRV or str, optional
        The blocks to schedule, one kernel of the function; default: all of them. Others are left
        for separate calls, or for TVM's primitives. What they read of these blocks is stored.

    Raises
    ------
    ScheduleError
        The function is not a supported program of row reductions, or the configuration does not
        fit it.
    """
    check_program(HELPER, sch)
    check_type(HELPER, "config", config, RowReductionConfig, "an hs.RowReductionConfig")
    node = None
    if block is not None:
        copy = sch.copy()  # a look-up would stay in the trace
        node = copy.get(as_block(copy, block))
    plan = _try(sch, config or RowReductionConfig(), node, blocks)
    with origins.noted(sch), as_one_step():
        _schedule(sch, plan)


def chosen_rows(
    sch: s_tir.Schedule, config: RowReductionConfig | None = None
) -> RowReductionConfig:
    """Return what `row_reduction` does with a program: a configuration with nothing left open.

    - `sch`: as for `row_reduction`; left as it is.
    - raises ScheduleError: the same as from `row_reduction`.
    """
    with thrown_away_if_refused():
        plan = _try(sch, config or RowReductionConfig())
    with as_one_step():
        return _schedule(twin(sch)[0], plan)


@dataclass(frozen=True)
class RowKernelPlan:
    """The work of a row kernel and its chosen configuration."""

    work: RowWork
    choice: RowChoice

    @classmethod
    def choose(cls, name: str, work: RowWork, given: RowReductionConfig) -> RowKernelPlan:
        """Choose for a program whose first block is named."""
        return cls(work, choose_rows(f"block {name}", work, given))


@dataclass(frozen=True)
class _Plan:
    """A program that was parsed in a copy of its schedule, and how it is to be scheduled.

    `rows` is None for a persistent kernel.
    """

    program: MemoryProgram
    given: RowReductionConfig
    rows: RowKernelPlan | None = None


def _try(
    sch: s_tir.Schedule, given: RowReductionConfig, node: Any = None, blocks: Any = None
) -> _Plan:
    """Parse a program and choose the rest open; schedule a copy, for what that raises."""
    with as_one_step(), as_refusal(HELPER, NEED):
        program = parse_blocks(sch, HELPER, blocks)
        if program.other and given.early_launch is None:  # one of several kernels
            given = replace(given, early_launch=False)
        if node is not None:
            _check_block(program, node)
        plan = _plan(sch, program, given)
    if plan.given is given:  # else a copy was scheduled already
        rehearse(sch, lambda copy, _same: _schedule(copy, plan))
    return plan


def _check_block(program: MemoryProgram, node: Any) -> None:
    part = next((p for p in program.parts if p.node.same_as(node)), None)
    if part is None or not part.reduced:
        need = "a block with a reduction axis"
        raise cannot_schedule(f"block {node.name_hint}", "no reduction", need)


def _plan(sch: s_tir.Schedule, program: MemoryProgram, given: RowReductionConfig) -> _Plan:
    """Say whether one kernel over rows is made of a program, and how."""
    has_sums = any(is_column_sum(p) for p in program.parts)
    if all(is_column_sum(p) for p in program.parts if p.reduced):
        refused: tuple[str, ...] = ("persistent", "ahead")
    elif given.persistent is None and not has_sums:
        refused = ("ahead",)
    else:
        for_rows = ("blocks", "chunks", "together", "unroll")
        _refuse_given(given, for_rows, "sums of columns next to rows: a persistent kernel")
        return _Plan(program, given)
    _refuse_given(given, refused, "a program without sums of columns next to rows")
    name, work = count_work(program.copy(), given)
    if given.is_open and not has_sums:
        with contextlib.suppress(ScheduleError, *TVM_ERRORS):
            known = keep_shared(work, given) or hold_rows(work, given)
            if known is not None:  # as long rows are known to be fastest
                rows = None if known.persistent else RowKernelPlan.choose(name, work, known)
                best = _Plan(program, known, rows)
                _schedule(twin(sch)[0], best)
                return best
    return _Plan(program, given, RowKernelPlan.choose(name, work, given))


def _schedule(sch: s_tir.Schedule, plan: _Plan) -> RowReductionConfig:
    """Schedule a program; return what was chosen for its first kernel."""
    with as_refusal(HELPER, NEED):
        program = plan.program.on(sch)
        if plan.rows is None:
            return _schedule_persistent(program, plan.given)
        return schedule_rows(program, plan.given, plan.rows)


def work_of(func: Any, given: RowReductionConfig) -> RowWork | PersistentWork:
    """Return what a function's first kernel has to do, by which configurations are estimated.

    - `given`: whether the kernel is a persistent one, and its vectors.
    """
    program = MemoryProgram.parse(s_tir.Schedule(func), HELPER)
    plan = _plan(program.sch, program, replace(given, early_launch=False))
    return plan.rows.work if plan.rows else _find_persistent(plan.program.copy(), given)[-1]


def _schedule_persistent(program: MemoryProgram, given: RowReductionConfig) -> RowReductionConfig:
    own, sums, rows, work = _find_persistent(program, given)
    choice = choose_persistent(f"block {(sums or own)[0].name}", work, given)

    def second(sch: s_tir.Schedule, given: RowReductionConfig, other: frozenset[str]) -> Any:
        return schedule_rest(sch, given, other | program.other)

    schedule_persistent(program.sch, own, sums, rows, choice, second)
    return replace(choice.config, recompute=given.recompute)


def _find_persistent(
    program: MemoryProgram, given: RowReductionConfig
) -> tuple[list[Part], list[Part], RowProgram, PersistentWork]:
    """Return what a persistent kernel computes of rows, its sums of columns, and the work."""
    sch, parts = program.sch, inline_parts(program, bool(given.recompute))
    own, sums = split_program(parts)
    _check_sums(own, sums)
    rows = find_rows(own)
    reads = find_reads(sch, [*own, *sums], rows.full)
    where = f"block {(sums or own)[0].name}"
    if not rows.rows:
        found, need = "one row next to sums of columns", "two rows or more"
        if not sums:
            found = f"persistent={given.persistent} for one row"
        fix = "write it without the sums" if sums else "leave persistent= out"
        raise cannot_schedule(where, found, need, fix)
    if not sums and all(x.has_rows for x in reads):
        raise cannot_schedule(
            where,
            f"persistent={given.persistent} for rows that share no tensor",
            "sums of columns, or a tensor that all rows share: it stays in registers",
            "leave persistent= out",
        )
    return own, sums, rows, find_work(sch, own, sums, rows, reads, given)


def _check_sums(own: list[Part], sums: list[Part]) -> None:
    """Refuse sums of columns of what is computed of rows next to them: it is in no memory yet."""
    made = [x for p in own for x in p.outputs]
    for part in sums:
        for load in part.loads:
            if any(load.source.same_as(x) for x in made):
                raise cannot_schedule(
                    f"block {part.name}",
                    f"sums of columns of {load.source.name}, which is computed from rows here",
                    "sums of columns of what the function is given",
                    "let a separate function compute them, by hs.column_reduction",
                )


def _refuse_given(given: RowReductionConfig, names: tuple[str, ...], program: str) -> None:
    for name in names:
        if value := getattr(given, name):
            found = f"{name}={value} for {program}"
            raise cannot_schedule("RowReductionConfig", found, f"{name}= left out there")


def schedule_rest(
    sch: s_tir.Schedule, given: RowReductionConfig, other: frozenset[str]
) -> RowReductionConfig:
    """Make one kernel of a function's blocks, but for those of another one; return the choice.

    - `other`: names of blocks that stay as they are, whose results are read from memory.
    """
    if given.early_launch is None:  # one of several kernels
        given = replace(given, early_launch=False)
    program = MemoryProgram.parse(sch, HELPER, other)
    plan = RowKernelPlan.choose(*count_work(program.copy(), given), given)
    return schedule_rows(program, given, plan)


def schedule_rows(
    program: MemoryProgram, given: RowReductionConfig, plan: RowKernelPlan
) -> RowReductionConfig:
    """Make one kernel of a program over rows; return what was chosen.

    - `program`: changed in place, as its schedule is.
    """
    sch, choice = program.sch, plan.choice
    parts = inline_rows(program, choice.recompute)
    rows = find_rows(parts)
    stored = sum_bytes(in_memory(sch, parts, rows.full))
    kernel = _make_nests(sch, parts, rows, choice)
    block = _share_rows(sch, kernel, rows, choice)
    bind_blocks(sch, block, keys.ROW_REDUCTION, choice.text, choice.blocks, choice.early_launch)
    if choice.tile.cluster > 1:
        sch.annotate(block, keys.ROW_CLUSTER, choice.tile.cluster)
    if choice.hint and not choice.stage:
        hint_loads(sch, kernel.nests)
    if keeps_end(plan.work, choice):
        stored *= rows.columns * choice.tile.block_rows
        keep_end(sch, block, stored, chip_of_target().l2_bytes)
    blocks = ir.static_int(sch.get(block).extent)
    if (together := begin_together(plan.work, choice, blocks, given)) > 1:
        sch.annotate(block, keys.LAUNCHED_TOGETHER, together)
    return replace(choice.config, together=given.together)


@dataclass(frozen=True)
class _Kernel:
    """The loop nests of a kernel over rows, in an order that they can run in."""

    nests: list[Nest]
    staged: list[Nest]  # of them, copies to shared memory
    late: list[Nest]  # those of which a thread block has a part of a row
    passes: list[Pass]  # over rows that are streamed


def _make_nests(
    sch: s_tir.Schedule, parts: list[Part], program: RowProgram, choice: RowChoice
) -> _Kernel:
    """Put rows and results in registers, or rows in shared memory."""
    reads = find_reads(sch, parts, program.full, numbered=True)
    staged: list[Nest] = []
    if choice.stage:
        staged, reads = stage_rows(sch, reads, choice.preload)
    if choice.is_streamed:
        reads = read_apart(reads, parts, program.full)
    elif choice.split:
        reads = read_late(load_again(reads, parts), parts)
    elif choice.reload:
        reads = load_again(reads, parts)
    row = (program.columns,)
    nests = keep_in_registers(sch, parts, program.full, program.rows, row, reads, choice.tile)
    for nest in staged:
        number_elements(sch, nest, len(program.rows), row)
    nests = [*staged, *nests]
    late = find_late(nests) if choice.split else []
    if late:  # what a thread block stores it loads next to the row, before it waits
        nests.sort(key=lambda x: (x.work is not Work.LOAD) + (x.work not in EARLY))
    return _Kernel(nests, staged, late, plan_passes(nests) if choice.is_streamed else [])


def _share_rows(
    sch: s_tir.Schedule, kernel: _Kernel, program: RowProgram, choice: RowChoice
) -> Any:
    """Deal rows out to thread blocks and threads; return the loop over thread blocks."""
    tile, passes = choice.tile, kernel.passes
    inside = [x for one in passes for x in (*one.loads, *one.stores)]
    shared = [x for x in kernel.nests if x.work is Work.LOAD_COLUMNS and x not in inside]
    of_all = [x for x in kernel.staged if x.work is Work.STAGE_COLUMNS]
    outside = [x for x in kernel.nests if x not in (*shared, *inside, *of_all)]
    rows = [_row_loop(sch, nest, tile) for nest in outside]
    deal_out_passes(sch, passes, tile)  # each in its own nest: the merged one is after
    block = merge(sch, rows)
    for nest in shared:  # before the reductions, or right before what reads it
        sch.compute_at(nest.block, block, index=0 if choice.preload else -1)
    for nest in kernel.nests:
        if nest.work is Work.STORE_ROWS:
            one_thread(sch, nest.block, tile)
        elif nest.work is not Work.COMPUTE_ROWS and not passes:
            loop = list(sch.get_loops(nest.block))[-1]
            share = "blockIdx.y" if nest in kernel.late else None
            deal_out(sch, loop, tile, whole=nest.work in WHOLE_VECTORS, share=share)
    block = _bind_rows(sch, block, outside[0], tile)
    for nest in of_all:  # whichever of the thread block's rows there are
        sch.compute_at(nest.block, block, index=0)
    ask_for_bulk(sch, kernel.staged, program.columns, tile, choice.hint)
    return block


def _row_loop(sch: s_tir.Schedule, nest: Nest, tile: RegisterTile) -> Any:
    """Return a nest's loop over rows; inside of it those of a thread, which all load first."""
    row = row_loop(sch, nest)
    if tile.unroll == 1:
        return row
    _, below, own = sch.split(row, [None, tile.rows, tile.unroll])
    sch.unroll(own)
    return below


def _bind_rows(sch: s_tir.Schedule, row: Any, first: Nest, tile: RegisterTile) -> Any:
    """Bind the loop over rows with separate threads; return the one over thread blocks."""
    if tile.unroll > 1:
        sch.bind(row, "threadIdx.y")
        return next(iter(sch.get_loops(first.block)))
    if tile.rows == 1:
        return row
    block, below = sch.split(row, [None, tile.rows])
    sch.bind(below, "threadIdx.y")
    return block
