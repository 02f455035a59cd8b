"""Schedule programs that reduce dimensions with others on both sides, or one after another.

One kernel, if thread blocks have whole columns (`strip_kernel.py`). If they share them:

  S_part[i, share, j] = sum of X[i, k, j]          k of a thread block
  S[i, j] = sum of S_part[i, .., j]                a kernel of columns, and what is computed of S
  ...                                              the same for reductions that read S
  Y[i, k, j] = f(X[i, k, j], S[i, j])              thread blocks have parts of columns again
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests import keys
from tvm_hopper.schedule.memory_bound.inline import inline_parts
from tvm_hopper.schedule.memory_bound.program import MemoryProgram, Part, block_names, results
from tvm_hopper.schedule.memory_bound.tiles import sum_bytes, whole_vector

from .config import ColumnReductionConfig, config_of
from .model import ColumnTile
from .recognize import ColumnProgram
from .recognize_strips import Kind, StripProgram, find_strip_reads, find_strips, group_reductions
from .strip_kernel import StripKernel
from .strip_model import StripChoice, StripWork, choose_strips, cycles_of_sums, least_cycles

HELPER = "column_reduction"
CLEARLY_LESS = 0.8  # of the time of two kernels: estimates are as far from the truth


def schedule_strips(
    program: MemoryProgram, strips: StripProgram, given: ColumnReductionConfig
) -> ColumnReductionConfig:
    """Schedule an inlined program of columns; return what was chosen.

    - `program`: changed in place, as its schedule is.
    - `strips`: the kinds of its blocks, and extents.
    """
    if given.group is not None:
        found, need = f"group={given.group}", "a reduction of all elements to one value"
        raise cannot_schedule("ColumnReductionConfig", found, need)
    parts = inline_parts(program, recompute=True)  # only what is loaded waits in registers
    strips = replace(strips, kinds={p.name: strips.kinds[p.name] for p in parts})
    sch = program.sch
    groups = group_reductions(parts)
    choice = choose_strips(_count_work(sch, parts, strips, groups, given), given)
    if choice.tile.blocks == 1:
        _make_kernel(sch, parts, strips, choice)
    else:
        _share_columns(program, strips, groups, choice)
    return config_of(choice.tile)


def find_few_rows(
    sch: s_tir.Schedule,
    parts: list[Part],
    columns: ColumnProgram,
    tile: ColumnTile,
    given: ColumnReductionConfig,
) -> StripProgram | None:
    """Recognise sums of so few rows that one kernel takes less time than two.

    - `tile`: the configuration of the first of two kernels, the alternative.
    - `given`: nothing, unless two kernels are requested.
    """
    extents = [ir.static_int(x) for x in (*columns.rows, *columns.columns)]
    if None in extents or given != ColumnReductionConfig():
        return None
    strips = find_strips(parts, one_pass=True)
    assert strips is not None, "sums over leading dimensions are a program of columns"
    work = replace(_count_work(sch, parts, strips, [], given), split=False)
    at_once = tile.threads * tile.vector * tile.rows * tile.flight * work.loaded
    count = -(-work.columns // (tile.threads * tile.vector)) * tile.blocks
    is_less = least_cycles(work) < CLEARLY_LESS * cycles_of_sums(work, count, at_once)
    return strips if is_less else None


def _share_columns(
    program: MemoryProgram, strips: StripProgram, groups: list[list[str]], choice: StripChoice
) -> None:
    """Make kernels in which thread blocks share columns, and those that combine their results."""
    sch, choice = program.sch, replace(choice, early=True)
    names = {kind: [p.name for p in program.parts if strips.kinds[p.name] is kind] for kind in Kind}
    ready = _ready_after(program.parts, groups, names[Kind.COLUMN])
    if elements := names[Kind.ELEMENT]:
        _make_kernel(sch, _parse(sch, elements), strips, choice)
    # The last kernel first: what a kernel reads is plain loops yet, of which TVM knows the extents.
    for group, columns in zip(reversed(groups), reversed(ready), strict=True):
        parts = _parse(sch, group)
        reads = find_strip_reads(sch, parts, strips)
        kernel = StripKernel(sch, strips, choice.tile)
        shared = {p.name: kernel.share(p) for p in parts}
        _combine(sch, _parse(sch, [*group, *columns]))
        own = [
            [replace(x, readers=tuple(shared[p.name] for p in x.readers)) for x in some]
            for some in reads
        ]
        _annotate(sch, kernel.schedule(list(shared.values()), *own), choice)


def _combine(sch: s_tir.Schedule, parts: list[Part]) -> None:
    """Make one kernel of blocks that combine what thread blocks have left of columns."""
    strips = find_strips(parts, one_pass=True)
    assert strips is not None, "what thread blocks have left is no program of columns"
    alone = ColumnReductionConfig(blocks=1)
    choice = choose_strips(_count_work(sch, parts, strips, [], alone), alone)
    _make_kernel(sch, parts, strips, replace(choice, early=True))


def _parse(sch: s_tir.Schedule, names: list[str]) -> list[Part]:
    """Look up blocks that no kernel has yet."""
    other = frozenset(block_names(sch) - set(names))
    return MemoryProgram.parse(sch, HELPER, other).parts


def _make_kernel(
    sch: s_tir.Schedule, parts: list[Part], strips: StripProgram, choice: StripChoice
) -> None:
    reads = find_strip_reads(sch, parts, strips)
    _annotate(sch, StripKernel(sch, strips, choice.tile).schedule(parts, *reads), choice)


def _annotate(sch: s_tir.Schedule, block: Any, choice: StripChoice) -> None:
    sch.annotate(block, keys.MEMORY_BOUND, keys.COLUMN_REDUCTION)
    sch.annotate(block, keys.CHOSEN, choice.text)
    sch.annotate(block, keys.BLOCKS_PER_SM, choice.blocks_per_sm)
    if choice.early:
        sch.annotate(block, keys.EARLY_LAUNCH, 1)


def _ready_after(parts: list[Part], groups: list[list[str]], columns: list[str]) -> list[list[str]]:
    """Return the blocks of one value a column that can be computed after each group."""
    done: set[str] = set()
    found = []
    for group in groups:
        done |= set(group)
        ready = []
        for part in parts:
            if part.name in columns and part.name not in done and not _waits(part, parts, done):
                ready.append(part.name)
                done.add(part.name)
        found.append(ready)
    return found


def _waits(part: Part, parts: list[Part], done: set[str]) -> bool:
    """Tell a block that reads what one that is not done yet computes."""
    missing = [x for p in parts if p is not part and p.name not in done for x in p.outputs]
    return any(_is_any(x.source, missing) for x in part.loads)


def _is_any(buffer: Any, buffers: list[Any]) -> bool:
    return any(buffer.same_as(x) for x in buffers)


def _element_results(parts: list[Part], strips: StripProgram) -> list[Any]:
    elements = [p for p in parts if strips.kinds[p.name] is Kind.ELEMENT]
    return [x for p in elements for x in p.outputs]


def _count_work(
    sch: s_tir.Schedule,
    parts: list[Part],
    strips: StripProgram,
    groups: list[list[str]],
    given: ColumnReductionConfig,
) -> StripWork:
    reads, _ = find_strip_reads(sch, parts, strips)
    outputs = results(sch, parts)
    written = [x for p in parts for x in p.outputs if _is_any(x, outputs)]
    full = _element_results(parts, strips)
    stored = [x for x in full if _is_any(x, written)]
    used = [x.source for p in parts for x in p.loads]
    read = [x.tensor for x in reads]
    outer = [ir.static_int(x) for x in strips.outer]
    where = f" for {strips.columns} columns"
    return StripWork(
        strips=None if None in outer else prod(map(int, strips.outer)),
        length=strips.length,
        columns=strips.columns,
        vector=whole_vector(
            "ColumnReductionConfig", where, strips.columns, [*read, *written], given.vector
        ),
        loaded=sum_bytes(read) or 1,  # what is computed alone has none
        narrow=min((dtype_bytes(ir.dtype_of(x)) for x in [*read, *stored]), default=1),
        stored=sum_bytes(stored),
        kept=sum_bytes(x for x in full if _is_any(x, used)),
        reductions=sum(bool(p.reduced) for p in parts),
        groups=len(groups) or 1,
        split=bool(groups) and None not in outer,
    )
