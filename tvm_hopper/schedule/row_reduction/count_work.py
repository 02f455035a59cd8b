"""Count what a kernel over rows has to do: the work by which configurations are estimated."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import BULK_ALIGNMENT
from tvm_hopper.schedule.memory_bound.arrays import find_reads, load_again
from tvm_hopper.schedule.memory_bound.inline import count_instructions
from tvm_hopper.schedule.memory_bound.nests import in_memory
from tvm_hopper.schedule.memory_bound.program import MemoryProgram, Part, results, tensors_read
from tvm_hopper.schedule.memory_bound.tiles import ends_with, sum_bytes
from tvm_hopper.schedule.memory_bound.work import RowWork

from .config import RowReductionConfig
from .number import inline_rows
from .odd_rows import choose_vector
from .recognize import RowProgram, find_rows
from .split import may_split
from .stream import count_passes, find_kept


def count_work(program: MemoryProgram, given: RowReductionConfig) -> tuple[str, RowWork]:
    """Return the name of a program's first block, and what there is to do; inline its blocks."""
    parts, copy = inline_rows(program), program.sch
    rows = find_rows(parts)
    reads = find_reads(copy, parts, rows.full, numbered=True)
    stored = results(copy, parts)
    elements = in_memory(copy, parts, rows.full)
    tensors = [*(x.tensor for x in reads), *elements]
    computed = [p for p in parts if p.name in rows.full and p.outputs[0] not in elements]
    kept = [p.outputs[0] for p in computed]
    count = [ir.static_int(x) for x in rows.rows]
    again = program.copy()
    early = inline_rows(again, recompute=True) if kept else parts
    reloads = load_again(find_reads(again.sch, early, numbered=True), early)
    of_rows = [x.tensor for x in reads if x.has_rows]
    of_all = [x.tensor for x in reads if not x.has_rows]
    vector, shift = choose_vector(copy, parts, rows, reads, tensors, given.vector)
    work = RowWork(
        rows=None if None in count else prod(x or 0 for x in count),
        columns=rows.columns + shift,
        vector=vector,
        shift=shift,
        loaded=sum_bytes(of_rows),
        shared=sum_bytes(of_all),
        kept=sum_bytes(kept),
        reductions=sum(bool(p.reduced) for p in parts),
        again=any(x.again for x in reloads),
        moved=sum_bytes(of_rows) + sum_bytes(elements),
        passes=count_passes(early, rows.full),
        splits=not shift and may_split(parts, rows.full, reads, stored),
        unstaged=_why_unstaged(early, rows, of_rows),
        unshared=_why_no_bulk(rows, of_all),
        tensors=len(of_all),
        beside=_reads_beside(copy, parts, [x.tensor for x in reads]),
        instructions=sum(count_instructions(p.store.value) for p in computed),
        moments=are_moments(parts),
    )
    return parts[0].name, work


def _why_unstaged(parts: list[Part], program: RowProgram, tensors: list[Any]) -> str:
    """Say why rows cannot wait in shared memory; nothing if they can."""
    if (kept := find_kept(parts, program.full)) is not None:
        return f"elements of {kept[1].source.name} that are computed and read again"
    return _why_no_bulk(program, tensors) if tensors else "no tensor of rows"


def _why_no_bulk(program: RowProgram, tensors: list[Any]) -> str:
    """Say why bulk copies do not bring tensors, rows of each or one for all; nothing if they do."""
    for tensor in tensors:
        if not ends_with(tensor.shape, program.columns):
            return f"rows over several dimensions of {tensor.name}"
        if program.columns * dtype_bytes(ir.dtype_of(tensor)) % BULK_ALIGNMENT:
            return f"rows of {program.columns} elements of {ir.dtype_of(tensor)}"
    return ""


def _reads_beside(sch: s_tir.Schedule, parts: list[Part], tensors: list[Any]) -> bool:
    """Tell whether a program reads something else than rows and what they share."""
    known = [*tensors, *(x for p in parts for x in p.outputs)]
    return any(not any(x.same_as(y) for y in known) for x in tensors_read(sch, parts))


def are_moments(parts: list[Part]) -> bool:
    """Tell whether a program's reductions are a sum of rows, and the squares around its mean."""
    sums = [p for p in parts if p.reduced]
    if len(sums) != 2:
        return False
    one, other = (_added(p) for p in sums)
    if one is None or not isinstance(other, tirx.Mul) or not isinstance(other.a, tirx.Sub):
        return False
    names = dict(zip(_variables(sums[1]), _variables(sums[0]), strict=False))
    alike = tvm_ffi.structural_equal(ir.substitute(other.a.a, names), one)
    squares = tvm_ffi.structural_equal(other.a, other.b)
    return bool(alike and squares and _reads(other.a.b, sums[0].outputs[0], parts))


def _added(part: Part) -> Any:
    """Return what a part adds up, in float32; None if it does something else."""
    value = getattr(part.store, "value", None)  # none: several values are reduced as one
    if not isinstance(value, tirx.Add) or ir.dtype_of(value) != "float32":
        return None
    own = isinstance(value.a, ir.TensorLoad) and value.a.source.same_as(part.outputs[0])
    return value.b if own else None


def _variables(part: Part) -> list[Any]:
    return [x.var for x in part.node.iter_vars]


def _reads(value: Any, result: Any, parts: list[Part]) -> bool:
    """Tell whether a value is computed of a result, or read from what is."""
    read = [x.source for x in ir.find_all(value, ir.TensorLoad)]
    made = [p for p in parts if not p.reduced and any(p.outputs[0].same_as(x) for x in read)]
    read += [x.source for p in made for x in ir.find_all(p.store.value, ir.TensorLoad)]
    return any(x.same_as(result) for x in read)
