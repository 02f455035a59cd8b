"""Recognise row reductions, or say why a function is none.

S[i] += f(X[i, k])       k runs over the contiguous dimension of what it reads: a row
Y[i, j] = g(X[i, j], S[i], W[j])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.memory_bound.numbers import is_numbered
from tvm_hopper.schedule.memory_bound.program import (
    FULL,
    OTHER,
    ROW,
    SEPARATE,
    Part,
    equal,
    is_plain,
    plain_index,
    same_extents,
    times,
)
from tvm_hopper.schedule.memory_bound.widen import HALVES
from tvm_hopper.schedule.memory_bound.widen_integers import NARROW

BITS_32 = ("float32", "int32", "uint32")


@dataclass(frozen=True)
class RowProgram:
    """Blocks over the same rows: extents of the rows, elements of one."""

    rows: tuple[Any, ...]
    columns: int
    full: frozenset[str]  # names of the blocks with one value for each element


def find_rows(parts: list[Part]) -> RowProgram:
    """Recognise a program of row reductions.

    - `parts`: the rest of the function after inlining.
    - raises ScheduleError: there is no reduction, or one that is not of rows, or blocks of other
      shapes next to it.
    """
    reductions = [p for p in parts if p.reduced]
    if not reductions:
        fix = "schedule elementwise programs by hs.pointwise"
        raise cannot_schedule("row_reduction", "no block with a reduction axis", "one", fix)
    first, *others = [(p, *_shape(p)) for p in reductions]
    _, rows, columns = first
    for part, own, length in others:
        if length != columns or not same_extents(own, rows):
            raise cannot_schedule(
                f"block {part.name}",
                f"{times(own)} rows of {length} elements next to {times(rows)} of {columns} in "
                f"block {first[0].name}",
                "rows of one length and number",
                SEPARATE,
            )
    kinds = {p.name: ROW if p.reduced else _kind(p, rows, columns) for p in parts}
    for part in parts:
        if kinds[part.name] == OTHER:
            extents = [x.dom.extent for x in part.spatial]
            raise cannot_schedule(
                f"block {part.name}",
                f"a result of {times(extents)} elements next to {times(rows)} rows of {columns}",
                "one value for each element, or one for each row",
                SEPARATE,
            )
    _check_reads(parts)
    full = frozenset(name for name, kind in kinds.items() if kind == FULL)
    return RowProgram(rows, columns, full)


def _shape(part: Part) -> tuple[tuple[Any, ...], int]:
    """Return rows and columns of a reduction; refuse those that are not of rows."""
    where = f"block {part.name}"
    if len(part.reduced) != 1:
        names = ", ".join(x.var.name for x in part.reduced)
        fix = "reshape the tensor so that they are one dimension"
        raise cannot_schedule(where, f"a reduction over {names}", "one axis, the last", fix)
    (axis,) = part.reduced
    columns = ir.static_int(axis.dom.extent)
    if columns is None:
        found = f"rows of {axis.dom.extent} elements"
        raise cannot_schedule(where, found, "a length that is known", "make it static")
    if columns < 2:
        fix = "leave out the dimension of one: what is left is elementwise, for hs.pointwise"
        raise cannot_schedule(where, f"rows of {columns} elements", "2 or more", fix)
    over = [x for x in part.loads if ir.depends_on(list(x.indices), [axis.var])]
    if not over:
        raise cannot_schedule(where, f"no tensor along {axis.var.name}", "a row to reduce")
    _check_along_rows(part, axis, over)
    for dtype in map(ir.dtype_of, part.outputs):
        if dtype not in BITS_32 and not (dtype == "int64" and len(part.outputs) > 1):
            fix = "cast the input to float32 before it is reduced"
            if dtype in (*HALVES, *NARROW):
                fix += ", or take hs.widen_sums(mod)"
            raise cannot_schedule(where, f"a reduction in {dtype}", " or ".join(BITS_32), fix)
    return tuple(x.dom.extent for x in part.spatial), columns


def _check_along_rows(part: Part, axis: Any, over: list[Any]) -> None:
    """Refuse a reduction whose elements are no neighbours in memory, or of no row each."""
    where, variables = f"block {part.name}", [x.var for x in part.spatial]
    inner = [x for x in over if not x.indices[-1].same_as(axis.var)]
    for load in inner:
        if plain_index(load, [*variables, axis.var]) is None:
            continue
        raise cannot_schedule(
            f"{where}, tensor {load.source.name}",
            f"a reduction over dimension {_position(load, axis.var)} of {len(load.indices)}: of "
            "columns, not of rows",
            "the last dimension, whose elements are neighbours in memory",
            "transpose the tensor before",
        )
    full = [*variables, axis.var]
    if not any(is_plain(load, full) or is_numbered(load, part, list(part.axes)) for load in over):
        (load, *_) = over
        text = ", ".join(map(str, load.indices))
        raise cannot_schedule(
            f"{where}, tensor {load.source.name}",
            f"the index [{text}]; {', '.join(v.name for v in variables)} number the results",
            "a row for each result: every dimension by its own variable",
            SEPARATE,
        )


def _in_order(index: list[Any], variables: list[Any]) -> bool:
    return all(x.same_as(v) for x, v in zip(index, variables, strict=True))


def _position(load: Any, var: Any) -> int:
    return next(i for i, x in enumerate(load.indices) if x.same_as(var))


def _kind(part: Part, rows: tuple[Any, ...], columns: int) -> str:
    extents = tuple(x.dom.extent for x in part.spatial)
    variables = [x.var for x in part.spatial]
    if (
        not is_plain(part.store, variables)
        and not _permutes_rows(part.store, variables)
        and not is_numbered(part.store, part, list(part.spatial))
    ):
        return OTHER
    if same_extents(extents, rows):
        return ROW
    if same_extents(extents[:-1], rows) and equal(extents[-1], columns):
        return FULL
    return OTHER


def _permutes_rows(store: Any, variables: list[Any]) -> bool:
    """Tell a store of whole rows in another order than they are computed in."""
    index = plain_index(store, variables) or []
    is_whole = len(index) == len(variables) > 0
    return is_whole and bool(index[-1].same_as(variables[-1]))


def _check_reads(parts: list[Part]) -> None:
    """Refuse blocks that read other elements of a result than their own: they are in registers."""
    made = [x for p in parts for x in p.outputs]
    for part in parts:
        variables = [x.var for x in (*part.spatial, *part.reduced)]
        for load in part.loads:
            if not any(load.source.same_as(x) for x in made):
                continue
            index = plain_index(load, variables)
            plain = index is not None and _in_order(index, variables[: len(index)])
            if not plain and not _is_own_number(load, part):
                text = ", ".join(map(str, load.indices))
                raise cannot_schedule(
                    f"block {part.name}, tensor {load.source.name}",
                    f"the index [{text}] of a result of this function",
                    "the element or the row that the block itself computes",
                    SEPARATE,
                )


def _is_own_number(load: Any, part: Part) -> bool:
    """Tell a result that is read at the row, or at the element, that the block computes."""
    axes = [*part.spatial, *part.reduced]
    return any(is_numbered(load, part, axes[:count]) for count in range(1, len(axes) + 1))
