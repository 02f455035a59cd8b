"""Plan bulk copies (`cp.async.bulk`): the longest runs of bytes contiguous at both ends.

    for i, j in grid(8, 512): tile[i, j] = A[m + i, j]          A of 512 columns: one run of 8 rows
    for i, j in grid(8, 512): tile[i, j] = A[m + i, n + j]      of more: eight runs of a row

A run starts at a multiple of 16 bytes at both ends and is as many bytes long (PTX ISA 9.1,
9.7.9.25.4.1). What a predicate on the store leaves out at the end of a dimension is not copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.bounds import find_bounds
from tvm_hopper.analysis.divisors import divisor
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.programming_model import BULK_ALIGNMENT
from tvm_hopper.transforms.common.copy_rules import (
    check_alone,
    check_loops,
    check_once,
    check_partial,
    count_left,
    is_aligned_slot,
    is_aligned_start,
)
from tvm_hopper.transforms.common.transfer import Transfer

from .mechanism import PlannedCopy


@dataclass(frozen=True)
class BulkTransfer(PlannedCopy):
    """One tile as runs.

    - `run`: the loops whose iterations lie in a row at both ends, innermost first.
    - `rest`: the other loops, outermost first: a run for each of their iterations.
    - `counts`: the iterations of each loop that the predicate lets through, ints or expressions.
    """

    run: tuple[ir.For, ...]
    rest: tuple[ir.For, ...]
    counts: dict[ir.For, Any]

    @property
    def inside(self) -> tuple[ir.For, ...]:
        """The loops that no instruction is in: those of a run, and those of one iteration."""
        return tuple(x for x in self.copy.loops if not any(x.same_as(y) for y in self.rest))

    @property
    def run_bytes(self) -> Any:
        """Bytes of one run, an int or an expression."""
        size = self.copy.tile.element_bytes
        return product([size, *(self.counts[loop] for loop in self.run)])

    def tile_counts(self) -> list[Any]:
        """Return how many elements are copied along each dimension of the tile."""
        axes = range(len(self.copy.tile.indices))
        return [
            product([self.counts[loop] for loop in _loops_along(self.copy, axis)]) for axis in axes
        ]


def plan_bulk_copies(
    kernel: ir.For, copies: tuple[Transfer, ...], _: Any = None
) -> tuple[BulkTransfer, ...]:
    """Plan the runs of every bulk copy; every reason to refuse is raised here."""
    around = tuple(ir.find_all(kernel, ir.For))
    for copy in copies:
        check_alone(kernel, copy)
        check_partial(kernel, copy)
    return tuple(_plan_runs(copy, around) for copy in copies)


def _plan_runs(copy: Transfer, around: tuple[ir.For, ...]) -> BulkTransfer:
    loops = _check_tile_loops(copy)
    check_once(copy)
    plan = _in_runs(copy, loops, _counts(copy, loops, around))
    _check_alignment(plan)
    return plan


def static_runs(copy: Transfer) -> BulkTransfer:
    """Return the runs of a copy without a predicate, wherever they start."""
    loops = _check_tile_loops(copy)
    return _in_runs(copy, loops, {loop: int(loop.extent) for loop in loops})


def _in_runs(copy: Transfer, loops: tuple[ir.For, ...], counts: dict[ir.For, Any]) -> BulkTransfer:
    run = _find_run(copy, loops, counts)
    rest = tuple(loop for loop in loops if not any(loop.same_as(x) for x in run))
    ones = {loop: 1 for loop in copy.loops if not any(loop.same_as(x) for x in loops)}
    return BulkTransfer(copy, run, rest, {**counts, **ones})


def _loops_along(copy: Transfer, axis: int) -> list[ir.For]:
    """Return the loops of more than one iteration that move an index of the tile, and no other."""
    loops = [loop for loop in copy.loops if not ir.is_const(loop.extent, 1)]
    own = [loop for loop in loops if copy.tile.steps(loop)[axis] != 0]
    return [x for x in own if sum(step != 0 for step in copy.tile.steps(x)) == 1]


def _fills(copy: Transfer, axis: int) -> bool:
    """Tell whether loops run once over each element along a dimension of the tile."""
    steps = {loop: copy.tile.steps(loop)[axis] or 0 for loop in _loops_along(copy, axis)}
    length = 1
    for loop in sorted(steps, key=lambda x: steps[x]):
        if steps[loop] != length or ir.static_int(loop.extent) is None:
            return False
        length *= int(loop.extent)
    first = copy.tile.start(copy.loops)[axis]
    return ir.is_const(copy.tile.buffer.shape[axis], length) and ir.is_zero(first)


def _check_tile_loops(copy: Transfer) -> tuple[ir.For, ...]:
    """Return loops of several iterations; refuse tiles not filled by static ones over each axis."""
    loops = tuple(loop for loop in copy.loops if not ir.is_const(loop.extent, 1))
    for axis in range(len(copy.tile.indices)) if copy.fills_shared else ():
        if not _fills(copy, axis):
            raise cannot_lower(
                copy.where,
                f"{copy.tile.buffer.name}{list(copy.tile.indices)} of shape "
                f"{list(copy.tile.buffer.shape)}",
                "a static shape, and a loop over each of its dimensions",
                "leave the copy's loops as compute_at made them",
            )
    check_loops(copy, loops)
    return loops


# -- what a predicate lets through


def _counts(
    copy: Transfer, loops: tuple[ir.For, ...], around: tuple[ir.For, ...]
) -> dict[ir.For, Any]:
    counts: dict[ir.For, Any] = {loop: int(loop.extent) for loop in loops}
    if copy.condition is None and copy.fills_shared:
        return counts
    tensor = copy.tensor
    every = {loop.loop_var: loop for loop in (*around, *copy.loops)}
    shape = tuple(tensor.buffer.shape)
    condition = True if copy.condition is None else copy.condition
    bounds = find_bounds(condition, tensor.indices, shape, tuple(every.values()))
    if bounds is None:
        raise _bad_predicate(copy)
    analyzer = sym.Analyzer()
    for var, loop in every.items():
        analyzer.bind(var, ir.range_of(loop))
    ones = {loop.loop_var: 0 for loop in copy.loops if ir.is_const(loop.extent, 1)}
    whole: list[Any] = []  # what all of the copy depends on
    for axis, bound in enumerate(bounds.below):
        index = ir.simplify(ir.substitute(tensor.indices[axis], ones))
        if bounds.from_zero[axis] and not analyzer.can_prove(index >= ir.cast_like(0, index)):
            if copy.must_fill or any(ir.uses(index, loop.loop_var) for loop in loops):
                raise cannot_lower(
                    copy.where,
                    f"a bound from below: {index} may be negative",
                    "indices from 0 on: a bulk copy starts where loops do, and fills nothing",
                    _instead(copy),
                )
            whole.append(index >= ir.cast_like(0, index))
        is_own = bound is None and not copy.fills_shared
        if is_own:  # a schedule may lose the predicate of a store; TMA would clip it by itself
            bound = shape[axis]
        if bound is None or analyzer.can_prove(index < ir.cast_like(bound, index)):
            continue
        moving = [loop for loop in loops if ir.uses(index, loop.loop_var)]
        if len(moving) > 1 or (moving and tensor.steps(moving[0])[axis] != 1):
            if is_own:
                continue
            raise _bad_predicate(copy)
        if copy.must_fill:
            raise cannot_lower(
                copy.where,
                f"a fill of {copy.fill} after {bound}",
                "a copy without a fill: a bulk copy moves bytes and stores no others",
                'take "tma", which fills with zeros'
                if ir.is_zero(copy.fill)
                else "apply the fill where the tile is used",
            )
        if not moving:
            whole.append(index < ir.cast_like(bound, index))
            continue
        left = ir.cast_like(bound, index) - tensor.start(moving)[axis]
        counts[moving[0]] = analyzer.simplify(count_left(left, moving[0].extent))
    if whole and loops:
        count = counts[loops[0]]
        if isinstance(count, int):
            count = tirx.IntImm("int32", count)
        counts[loops[0]] = tirx.Select(ir.conjunction(whole), count, ir.cast_like(0, count))
    return counts


def _bad_predicate(copy: Transfer) -> Exception:
    return cannot_lower(
        copy.where,
        f"the predicate {copy.condition}",
        "bounds, each of an index that one of the copy's loops moves, by 1",
        "apply any other predicate where the tile is used"
        if copy.fills_shared
        else "let threads store the tile",
    )


# -- what lies in a row


def _find_run(
    copy: Transfer, loops: tuple[ir.For, ...], counts: dict[ir.For, Any]
) -> tuple[ir.For, ...]:
    """Return the loops whose iterations lie in a row at both ends, innermost first."""
    run: list[ir.For] = []
    length = 1
    while True:
        behind = [
            loop
            for loop in loops
            if not any(loop.same_as(x) for x in run)
            and all(end.flat_step(loop) == length for end in (copy.tile, copy.tensor))
        ]
        if not behind:
            break
        run.append(behind[0])
        if ir.static_int(counts[behind[0]]) != int(behind[0].extent):
            break  # it ends before its last iteration: nothing is in a row with it
        length *= int(behind[0].extent)
    if not run:
        raise cannot_lower(
            copy.where,
            f"{copy.tensor.buffer.name}{list(copy.tensor.indices)} and "
            f"{copy.tile.buffer.name}{list(copy.tile.indices)}",
            "elements that are contiguous at both ends",
            "let the tile's last dimension be the contiguous one of the tensor",
        )
    return tuple(run)


def _check_alignment(plan: BulkTransfer) -> None:
    copy = plan.copy
    size = copy.tile.element_bytes
    unit = max(BULK_ALIGNMENT // size, 1)
    inside = prod(int(loop.extent) for loop in plan.run[:-1])
    if divisor(plan.counts[plan.run[-1]]) * inside % unit:
        raise cannot_lower(
            copy.where,
            f"{plan.run_bytes} contiguous bytes",
            f"a multiple of {BULK_ALIGNMENT}",
            f"pad the rows, or {_instead(copy)}",
        )
    if not is_aligned_slot(copy.tile, unit):
        raise cannot_lower(
            copy.where,
            f"a tile {copy.tile.buffer.name} of shape {list(copy.tile.buffer.shape)}",
            f"a multiple of {BULK_ALIGNMENT} bytes: the slots of a ring lie one after the other",
            f"pad its last dimension, or {_instead(copy)}",
        )
    for end in (copy.tensor, copy.tile):  # a tile made by cache_read has the tensor's offset
        if not is_aligned_start(end, plan.inside, unit):
            offset = end.buffer.ty.elem_offset
            behind = "" if ir.is_const(offset, 0) else f" after an elem_offset of {offset}"
            raise cannot_lower(
                copy.where,
                f"runs of {end.buffer.name} that start at {list(end.start(plan.inside))}{behind}, "
                f"rows of {list(end.strides)} elements",
                f"starts at multiples of {BULK_ALIGNMENT} bytes",
                f"pad the rows, or {_instead(copy)}",
            )


def _instead(copy: Transfer) -> str:
    """Say who copies what is not aligned."""
    return 'take "cp_async"' if copy.fills_shared else "remove the request: threads store them"


def product(factors: list[Any]) -> Any:
    """Multiply ints and integer expressions, as int32."""
    known = [x for x in map(ir.static_int, factors) if x is not None]
    total: Any = prod(known)
    for factor in factors:
        if ir.static_int(factor) is None:
            total = ir.as_int32(factor) * total
    return total if isinstance(total, int) else ir.simplify(total)
