"""Plan `cp.async` copies: their chunks of 16, 8 or 4 bytes.

    for i, j in grid(8, 512): tile[i, j] = A[m + i, j]                          half precision
      -> 512 chunks of 8 elements

A chunk is contiguous and aligned at both ends. What a predicate leaves out is filled with zeros, of
a chunk that is cut by a bound its end (PTX ISA 9.1, 9.7.9.25.3.1: `src-size`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.access import step_of
from tvm_hopper.analysis.bounds import as_less_than
from tvm_hopper.analysis.divisors import divides
from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests.keys import WGMMA
from tvm_hopper.transforms.common.copy_rules import (
    check_alone,
    check_inside,
    check_loops,
    check_once,
    check_partial,
    count_left,
    is_aligned_slot,
    is_aligned_start,
)
from tvm_hopper.transforms.common.transfer import Transfer

from .mechanism import PlannedCopy

CHUNK_BYTES = (16, 8, 4)  # PTX ISA 9.1, 9.7.9.25.3.1: `cp-size`


@dataclass(frozen=True)
class CpAsyncTransfer(PlannedCopy):
    """One tile in chunks.

    - `loops`: those of more than one iteration, outermost first; the last one runs along the
      chunks.
    - `width`: elements of a chunk.
    - `valid`: how many elements of the chunk at the loops' variables are read, an int or an
      expression; the others are zero.
    """

    loops: tuple[ir.For, ...]
    width: int
    valid: Any

    @property
    def num_chunks(self) -> int:
        """Chunks of the tile."""
        return prod(int(loop.extent) for loop in self.loops) // self.width

    @property
    def num_bytes(self) -> int:
        """Bytes of a chunk."""
        return self.width * self.copy.tile.element_bytes


def plan_cp_async_copies(
    kernel: ir.For, copies: tuple[Transfer, ...], _: Any = None
) -> tuple[CpAsyncTransfer, ...]:
    """Plan the chunks of every copy by cp.async; every reason to refuse is raised here."""
    thread = ir.thread_axes(kernel).get("threadIdx.x")
    # A product distributes threads by itself (LowerWgmma).
    has_threads = bool(ir.find_blocks(kernel, WGMMA)) or (
        thread is not None and ir.static_int(thread.extent) is not None
    )
    found = []
    for copy in copies:
        check_alone(kernel, copy)
        check_partial(kernel, copy)
        check_inside(kernel, copy)
        if not has_threads:
            raise cannot_lower(
                copy.where,
                "no loop bound to a static number of threads (threadIdx.x) in its kernel",
                "threads that distribute the copy",
                "bind the loops of what reads the tile",
            )
        found.append(_plan_chunks(copy))
    return tuple(found)


def _plan_chunks(copy: Transfer) -> CpAsyncTransfer:
    loops = tuple(loop for loop in copy.loops if not ir.is_const(loop.extent, 1))
    ends = (copy.tile, copy.tensor)
    rows = [loop for loop in loops if all(end.flat_step(loop) == 1 for end in ends)]
    check_loops(copy, loops)
    check_once(copy)
    if copy.fill is not None and not ir.is_zero(copy.fill):
        raise cannot_lower(
            copy.where,
            f"a fill of {copy.fill} out of bounds",
            "a fill of 0",
            "apply any other fill where the tile is used",
        )
    size = copy.tile.element_bytes
    if size in CHUNK_BYTES and loops and loops[-1] not in rows:
        rows.append(loops[-1])  # single elements need no neighbors
    for row in rows:
        ordered = (*(loop for loop in loops if not loop.same_as(row)), row)
        for num_bytes in CHUNK_BYTES:
            width = num_bytes // size
            if num_bytes % size or not _is_aligned(copy, row, width):
                continue
            valid = _valid(copy, row, width)
            if valid is not None:
                return CpAsyncTransfer(copy, ordered, width, valid)
    raise cannot_lower(
        copy.where,
        f"{copy.tensor.buffer.name}{list(copy.tensor.indices)} into "
        f"{copy.tile.buffer.name}{list(copy.tile.indices)}"
        + (f" where {copy.condition}" if copy.condition is not None else ""),
        "rows that are contiguous at both ends and start at multiples of 4 bytes, bounded at their "
        "end if at all",
        "let threads copy them: remove the request",
    )


def _is_aligned(copy: Transfer, row: ir.For, width: int) -> bool:
    if int(row.extent) % width or not is_aligned_slot(copy.tile, width):
        return False
    if width > 1 and any(end.flat_step(row) != 1 for end in (copy.tile, copy.tensor)):
        return False
    return all(is_aligned_start(end, [row], width) for end in (copy.tile, copy.tensor))


def _valid(copy: Transfer, row: ir.For, width: int) -> Any:
    """Return how many elements of a chunk the predicate lets through, None if not the first ones.

    In terms of the loops' variables, that of `row` at the start of the chunk.
    """
    if copy.condition is None:
        return width
    count: Any = tirx.IntImm("int32", width)
    whole: list[Any] = []
    for term in ir.conjuncts(copy.condition):
        if width == 1 or not ir.uses(term, row.loop_var):
            whole.append(term)
            continue
        sides = as_less_than(term)
        if sides is None:
            return None
        low, high = sides
        step = step_of(low, row.loop_var)
        if step != 1 or ir.uses(high, row.loop_var):
            return None
        first = ir.substitute(low, {row.loop_var: ir.cast_like(0, row.loop_var)})
        if divides(width, first) and divides(width, high):  # chunks start at its multiples
            whole.append(term)
            continue
        count = tirx.min(count, ir.as_int32(count_left(ir.simplify(high - low), width)))
    return tirx.Select(ir.conjunction(whole), count, tirx.IntImm("int32", 0)) if whole else count
