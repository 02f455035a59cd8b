"""Recognise column reductions, or say why a function is none.

S[j] += f(X[k, j], W[j])       k runs over all dimensions of what it reads but the last ones
Y[j] = g(S[j])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.memory_bound.program import SEPARATE, Part, is_plain, same_extents, times

SUMS = ("float32", "int32", "uint32", "int64")


@dataclass(frozen=True)
class ColumnProgram:
    """Reductions over the same rows: extents that number rows, and columns."""

    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    sums: tuple[str, ...]  # names of the reductions


def find_columns(parts: list[Part]) -> ColumnProgram:
    """Recognise a program of reductions of columns.

    - `parts`: the rest of the function after inlining.
    - raises ScheduleError: there is no reduction, or one that is not of columns, or one that reads
      another's result.
    """
    reductions = [p for p in parts if p.reduced]
    if not reductions:
        fix = "schedule elementwise programs by hs.pointwise"
        raise cannot_schedule("column_reduction", "no block with a reduction axis", "one", fix)
    first, *others = [(p, extents_of(p.reduced), extents_of(p.spatial)) for p in reductions]
    for part, rows, columns in others:
        if not same_extents(rows, first[1]) or not same_extents(columns, first[2]):
            raise cannot_schedule(
                f"block {part.name}",
                f"{times(rows)} rows of {times(columns)} columns next to {times(first[1])} of "
                f"{times(first[2])} in block {first[0].name}",
                "reductions of as many rows and columns",
                SEPARATE,
            )
    made = [x for p in parts for x in p.outputs]
    for part in reductions:
        _check(part, made)
    return ColumnProgram(first[1], first[2], tuple(p.name for p in reductions))


def check_apart(parts: list[Part]) -> None:
    """Refuse a reduction that reads what follows from another one, as a variance does.

    - `parts`: all of a function, in its order.
    - raises ScheduleError: one reads what another block of the function leaves behind a reduction.
    """
    late: list[Any] = []
    for part in parts:
        if part.reduced:
            _refuse_loads(part, late)
        if part.reduced or any(x.source.same_as(y) for x in part.loads for y in late):
            late += part.outputs


def _refuse_loads(part: Part, made: list[Any]) -> None:
    for load in part.loads:
        if any(load.source.same_as(x) for x in made):
            raise cannot_schedule(
                f"block {part.name}, tensor {load.source.name}",
                "a reduction of what another block of the function computes",
                "arguments of the function",
                SEPARATE,
            )


def _check(part: Part, made: list[Any]) -> None:
    where = f"block {part.name}"
    variables = [x.var for x in part.by_column]
    if any(ir.static_int(x.dom.extent) is None for x in part.spatial):
        found = f"{times(extents_of(part.spatial))} columns"
        raise cannot_schedule(where, found, "a number that is known", "make it static")
    if all(ir.static_int(x.dom.extent) == 1 for x in part.reduced):
        fix = "leave the reduction out: elements are for hs.pointwise"
        raise cannot_schedule(where, "a reduction over one row", "two rows or more", fix)
    _refuse_loads(part, made)
    over = [x for x in part.loads if ir.depends_on(list(x.indices), [v.var for v in part.reduced])]
    if not any(is_plain(x, variables) for x in over):
        index = ", ".join(map(str, over[0].indices)) if over else "none"
        raise cannot_schedule(
            where,
            f"the index [{index}] of what is reduced",
            f"[{', '.join(v.name for v in variables)}]: rows first, columns last",
            "reductions of the last dimension are for hs.row_reduction",
        )
    check_types(part)


def check_types(part: Part) -> None:
    """Refuse reductions in other types than `SUMS`."""
    for dtype in map(ir.dtype_of, part.outputs):
        if dtype not in SUMS:
            found, fix = f"a reduction in {dtype}", "cast the input to float32 before it is reduced"
            raise cannot_schedule(f"block {part.name}", found, " or ".join(SUMS), fix)


def extents_of(axes: Any) -> tuple[Any, ...]:
    """Return the extents of some axes of a block."""
    return tuple(x.dom.extent for x in axes)
