"""Recognise elementwise programs, and whether their elements are contiguous.

Y[i, j] = f(X[i, j], Z[i])          flat: element i * 4096 + j of X and of Y
Y[i, j] = f(X[i, j], W[j])          by rows: vectors of W, and of X along a row
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.schedule.memory_bound.arrays import Read
from tvm_hopper.schedule.memory_bound.program import SEPARATE, Part, is_plain, same_extents

from .windows import check_window

SHORT_ROW = 1024  # bytes, 64 threads' vectors: of 2048 a thread block a row was 2% faster
FLAT = 16  # columns that vectors of any type divide
MOST_FLAT = (1 << 31) - (1 << 16)  # elements that an index of 32 bits numbers, and a tile more


@dataclass(frozen=True)
class ElementProgram:
    """Blocks over the same elements: extents that number rows, and those of which a row is made."""

    rows: tuple[Any, ...]
    row: tuple[Any, ...]

    @property
    def columns(self) -> Any:
        """Elements of a row."""
        return prod(self.row[1:], start=self.row[0])


def group_by_shape(parts: list[Part], outputs: list[Any]) -> list[list[Part]]:
    """Part a program into kernels: blocks of one shape each, that share no temporary.

    One where its blocks have several shapes and hand values to one another: `check_elements` says
    then what is wrong with it.

    - `parts`: the rest of the function after inlining, in order.
    - `outputs` (list of buffer): what blocks leave in memory: a kernel after it may read that.
    """
    groups: list[list[Part]] = []
    for part in parts:
        same = groups and _same_shape(part, groups[-1][0])
        groups[-1].append(part) if same else groups.append([part])
    for group in groups:
        inner = [x for p in group for x in p.outputs if not any(x.same_as(y) for y in outputs)]
        others = [p for other in groups if other is not group for p in other]
        if any(x.source.same_as(y) for p in others for x in p.loads for y in inner):
            return [parts]
    return groups


def _same_shape(one: Part, other: Part) -> bool:
    return same_extents(*([x.dom.extent for x in p.spatial] for p in (one, other)))


def check_elements(parts: list[Part]) -> None:
    """Refuse a program that is not elementwise, with one shape.

    - raises ScheduleError: there is a reduction of more than a window, blocks of several shapes, or
      one that reads others' results elsewhere.
    """
    first = parts[0]
    made = [x for p in parts for x in p.outputs]
    for part in parts:
        where = f"block {part.name}"
        variables = [x.var for x in part.spatial]
        if not part.spatial and not part.reduced:
            need = "two or more of them: a kernel deals them out to threads"
            fix = "leave the function to TVM's rules, as tvm_hopper.dlight.rules() does"
            raise cannot_schedule(where, "a result of one element", need, fix)
        if part.reduced:
            check_window(part)
        if not _same_shape(part, first):
            own, others = ([x.dom.extent for x in p.spatial] for p in (part, first))
            found = f"{own} elements next to {others} of block {first.name}"
            raise cannot_schedule(where, found, "outputs of one shape", SEPARATE)
        if not is_plain(part.store, variables):
            index = ", ".join(map(str, part.store.indices))
            found = f"the output index [{index}]"
            raise cannot_schedule(where, found, "its loops' variables in their order", SEPARATE)
        for load in part.loads:
            if any(load.source.same_as(x) for x in made) and not is_plain(load, variables):
                raise cannot_schedule(
                    f"{where}, tensor {load.source.name}",
                    f"the index [{', '.join(map(str, load.indices))}] of a result of this function",
                    "the element that the block itself computes",
                    SEPARATE,
                )


def find_elements(parts: list[Part], reads: list[Read], by_rows: bool = False) -> ElementProgram:
    """Say whether vectors run along all elements, or along rows.

    Along rows where a tensor has one value for each column, where 32 bits do not number all, or
    where that is requested.
    So, too, after a symbolic dimension that is not the first: no simplifier gets indices back
    from the number of an element there. A row is then all that is after it.
    """
    axes = parts[0].spatial
    extents = tuple(x.dom.extent for x in axes) or (1,)
    if by_rows or not all(x.has_rows for x in reads) or (len(extents) > 1 and not _fits(axes)):
        return ElementProgram(extents[:-1], extents[-1:])
    symbolic = [i for i, x in enumerate(extents[:-1]) if ir.static_int(x) is None]
    first = symbolic[-1] + 1 if symbolic and symbolic[-1] else 0
    return ElementProgram(extents[:first], extents[first:])


def numbered_along(parts: list[Part], reads: list[Read]) -> list[Read]:
    """Leave out what short rows share: their elements are numbered all along nevertheless.

    A thread block has one row where vectors run along rows. Of short ones it has several if a
    vector of what they share is read at the remainder of its elements' number.
    """
    axes = parts[0].spatial
    columns = ir.static_int(axes[-1].dom.extent) if len(axes) > 1 else None
    if columns is None or columns % FLAT:
        return reads
    along = [x for x in reads if x.has_rows]
    tensors = [*(x.tensor for x in along), *(y for p in parts for y in p.outputs)]
    widest = max(dtype_bytes(ir.dtype_of(x)) for x in tensors)
    return along if columns * widest <= SHORT_ROW else reads


def _fits(axes: Any) -> bool:
    """Tell whether the type of the indices numbers all elements, and those of a tile after it."""
    if ir.dtype_of(axes[0].var) != "int32":
        return True
    sizes = [ir.static_int(x.dom.extent) for x in axes]
    return None not in sizes and prod(x or 0 for x in sizes) <= MOST_FLAT
