"""Recognise programs that reduce dimensions with others on both sides, or say why one is none.

M[i, j] = max(M[i, j], X[i, k, j])                       i: outer, k: reduced, j: kept, neighbours
S[i, j] += exp(X[i, k, j] - M[i, j])                     may read what another reduction leaves
Y[i, k, j] = exp(X[i, k, j] - M[i, j]) / S[i, j]         one value for each element
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.memory_bound.arrays import Read
from tvm_hopper.schedule.memory_bound.numbers import is_numbered
from tvm_hopper.schedule.memory_bound.program import (
    SEPARATE,
    Part,
    is_plain,
    load_shape,
    same_extents,
    tensors_read,
    times,
)

from .recognize import check_types, extents_of


class Kind(Enum):
    """The kinds of blocks, by what they compute."""

    REDUCTION = "a reduction"
    COLUMN = "one value a column"
    ELEMENT = "one value an element"


@dataclass(frozen=True)
class StripProgram:
    """Blocks over the same elements: extents of outer, reduced and kept dimensions."""

    outer: tuple[Any, ...]
    reduced: tuple[Any, ...]
    kept: tuple[Any, ...]
    kinds: dict[str, Kind | None]  # of each block, by its name

    @property
    def length(self) -> int:
        """Elements that are reduced to one."""
        return prod(ir.static_int(x) or 0 for x in self.reduced)

    @property
    def columns(self) -> int:
        """Kept elements that are neighbours in memory."""
        return prod(ir.static_int(x) or 0 for x in self.kept)

    def groups(self, part: Part) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the outer, reduced and kept variables of a block, without those of extent one."""
        axes, first = list(part.spatial), len(self.outer)
        if self.kinds[part.name] is Kind.ELEMENT:
            last = first + len(self.reduced)
            return axes[:first], axes[first:last], axes[last:]
        return axes[:first], list(_longer(part.reduced)), axes[first:]


def find_strips(parts: list[Part], one_pass: bool = False) -> StripProgram | None:
    """Recognise a program; None where no reduction is of columns, or one pass over rows serves.

    One pass, by `recognize.py`, is for sums over all dimensions in front, of which no element is
    stored and no other one is computed.

    - `parts`: the program, inlined.
    - `one_pass`: whether to take those as well.
    - raises ScheduleError: blocks of other shapes are next to it, extents are unknown, or a block
      reads elements of others than its own.
    """
    reductions = [p for p in parts if p.reduced]
    place = _find_place(reductions[0]) if reductions else None
    if place is None:
        return None
    first = reductions[0]
    spatial = extents_of(first.spatial)
    outer, reduced, kept = spatial[:place], extents_of(_longer(first.reduced)), spatial[place:]
    kinds = {p.name: _kind(p, outer, reduced, kept) for p in parts}
    is_one_pass = not outer and Kind.ELEMENT not in kinds.values()
    if is_one_pass and not one_pass and len(group_reductions(parts)) == 1:
        return None
    if any(ir.static_int(x) is None for x in (*reduced, *kept)):
        found = f"{times(reduced)} elements of each of {times(kept)} columns"
        raise cannot_schedule(f"block {first.name}", found, "numbers that are known")
    program = StripProgram(outer, reduced, kept, kinds)
    for part in parts:
        _check_part(part, parts, program)
    return program


def group_reductions(parts: list[Part]) -> list[list[str]]:
    """Put reductions together that need no other one's result; return the names of each group.

    - `parts`: in order.
    """
    groups: list[list[str]] = [[]]
    late: list[Any] = []  # what is computed from a result of the last group
    for part in parts:
        reads_late = any(x.source.same_as(y) for x in part.loads for y in late)
        if part.reduced and reads_late:
            groups.append([])
            late = []
        if part.reduced:
            groups[-1].append(part.name)
        if part.reduced or reads_late:
            late += part.outputs
    return groups


def find_strip_reads(
    sch: Any, parts: list[Part], program: StripProgram
) -> tuple[list[Read], list[Read]]:
    """Return the tensors with a value for each element, and those with one for each column.

    - `sch` (Schedule): only read.
    - `parts`: blocks of the program that are one kernel.
    - `program`: the whole program, with the kind of each block.
    """
    elements, columns = [], []
    for tensor in tensors_read(sch, parts):
        loads = [(x, p) for p in parts for x in p.loads if x.source.same_as(tensor)]
        made = any(tensor.same_as(x) for p in parts for x in p.outputs)
        if made or not loads:
            continue
        kinds = {_read_kind(x, p, program) for x, p in loads}
        readers = tuple(p for p in parts if any(p is y for _, y in loads))
        if kinds == {Kind.ELEMENT}:
            elements.append(Read(tensor, readers, True))
        elif kinds == {Kind.COLUMN}:
            columns.append(Read(tensor, readers, False))
    return elements, columns


def _read_kind(load: Any, part: Part, program: StripProgram) -> Kind | None:
    """Say whether a load is of a tensor's element, or column, where the block computes its own."""
    outer, reduced, kept = program.groups(part)
    if _is_at(load, part, [*outer, *kept]):
        return Kind.COLUMN
    by_element = program.kinds[part.name] is not Kind.COLUMN
    return Kind.ELEMENT if by_element and _is_at(load, part, [*outer, *reduced, *kept]) else None


def _is_at(access: Any, part: Part, axes: list[Any]) -> bool:
    """Tell an access of a whole tensor by variables in their order, each along its dimension."""
    extents = [x for x in load_shape(access) if not ir.is_const(x, 1)]
    if not same_extents(extents, extents_of(axes)):
        return False
    return is_plain(access, [x.var for x in axes]) or is_numbered(access, part, axes)


def _find_place(part: Part) -> int | None:
    """Return how many dimensions are in front of the reduced ones; None: not columns."""
    reduced = _longer(part.reduced)
    spatial = list(part.spatial)
    if not reduced:
        return None
    for load in part.loads:
        for place in range(len(spatial)):
            axes = [*spatial[:place], *reduced, *spatial[place:]]
            if _is_at(load, part, axes):
                return place
    return None


def _kind(part: Part, outer: Any, reduced: Any, kept: Any) -> Kind | None:
    own = extents_of(part.spatial)
    if part.reduced:
        same = same_extents(extents_of(_longer(part.reduced)), reduced)
        return Kind.REDUCTION if same and same_extents(own, (*outer, *kept)) else None
    if same_extents(own, (*outer, *reduced, *kept)):
        return Kind.ELEMENT
    return Kind.COLUMN if same_extents(own, (*outer, *kept)) else None


def _check_part(part: Part, parts: list[Part], program: StripProgram) -> None:
    where, kind = f"block {part.name}", program.kinds[part.name]
    shape = f"{times(program.reduced)} elements of each of {times(program.kept)} columns"
    if kind is None or not _stores_own(part):
        found = f"a result of {times(extents_of(part.spatial))} elements next to {shape}"
        need = "one value for each element, or one for each column"
        raise cannot_schedule(where, found, need, SEPARATE)
    if part.reduced:
        check_types(part)
    outer, reduced, kept = program.groups(part)
    made = {x: p for p in parts for x in p.outputs}
    for load in part.loads:
        maker = next((p for x, p in made.items() if x.same_as(load.source)), None)
        if maker is None:
            continue
        by_element = program.kinds[maker.name] is Kind.ELEMENT
        axes = [*outer, *reduced, *kept] if by_element else [*outer, *kept]
        if not _is_at(load, part, axes):
            text = ", ".join(map(str, load.indices))
            raise cannot_schedule(
                f"{where}, tensor {load.source.name}",
                f"the index [{text}] of a result of this function",
                "the element or the column that the block itself computes",
                SEPARATE,
            )


def _stores_own(part: Part) -> bool:
    stores = ir.find_all(part.node.body, ir.BufferStore)
    return all(_is_at(x, part, list(part.spatial)) for x in stores)


def _longer(axes: Any) -> tuple[Any, ...]:
    return tuple(x for x in axes if not ir.is_const(x.dom.extent, 1))
