"""Programs over rows of several dimensions, as group norms are, with two loops for each block.

S[n, g] += X[n, g * 10 + k, h, w]                          over k, h, w
Y[n, c, h, w] = X[n, c, h, w] * S[n, c // 10] * W[c]
->
S[r // 32, r % 32] += X[..]                                 r < 32 * batch, over k < 10 * 64 * 64
Y[..] = X[..] * S[r // 32, r % 32] * W[r % 32 * 10 + j // 4096]
"""

from __future__ import annotations

import contextlib
from typing import Any

from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.memory_bound.inline import inline_parts
from tvm_hopper.schedule.memory_bound.numbers import is_numbered, number_block
from tvm_hopper.schedule.memory_bound.program import Part, find_parts, params
from tvm_hopper.schedule.reasons import TVM_ERRORS

HELPER = "row_reduction"


def inline_rows(
    sch: s_tir.Schedule, recompute: bool = False, other: frozenset[str] = frozenset()
) -> list[Part]:
    """Inline elementwise blocks, and count rows and their elements by one loop each.

    Programs whose reductions have one axis stay as they are.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    recompute : bool
        Whether to inline what is dear, too, if it has one value for each element.
    other : frozenset of str
        Names of blocks that belong to another kernel of the function.

    Raises
    ------
    ScheduleError
        A reduction is over several axes that are not the last ones of what it reads.
    """
    if any(len(x.reduced) > 1 for x in find_parts(sch, HELPER, other)):
        _inline_views(sch, other)
    parts = inline_parts(sch, HELPER, recompute, other)
    several = [p for p in parts if len(p.reduced) > 1]
    if not several or not several[0].outputs[0].shape:  # a scalar has no rows to count
        return parts
    for part in several:
        _check(part)
    rows = [x.dom.extent for x in several[0].spatial]
    columns: Any = 1
    for axis in several[0].reduced:
        columns = axis.dom.extent * columns
    for part in parts:
        number_block(sch, part, rows, ir.simplify(columns))
    parts = find_parts(sch, HELPER, other)
    for part in parts:
        _check_remainders(part)
    return parts


def _inline_views(sch: s_tir.Schedule, other: frozenset[str]) -> None:
    """Inline blocks that only move elements: each reader finds its own."""
    outputs = list(params(sch))
    for part in find_parts(sch, HELPER, other):
        moves = isinstance(part.store, ir.BufferStore) and isinstance(
            part.store.value, ir.TensorLoad
        )
        if moves and not any(x.same_as(y) for x in part.outputs for y in outputs):
            with contextlib.suppress(*TVM_ERRORS):  # `inline_parts` says which block it was
                sch.compute_inline(part.block)


def _check(part: Part) -> None:
    """Refuse reductions over axes that are not the last ones, side by side."""
    if not any(is_numbered(x, part, list(part.axes)) for x in part.loads):
        names = ", ".join(x.var.name for x in part.reduced)
        raise cannot_schedule(
            f"block {part.name}",
            f"a reduction over {names}",
            "one axis, the last, or several that lie side by side at the end of what it reads",
            "transpose or reshape the tensor so that they are",
        )


def _check_remainders(part: Part) -> None:
    """Refuse indices that are taken modulo an extent that is unknown: nothing simplifies them."""
    for load in part.loads:
        for index in load.indices:
            found = ir.find_all(ir.simplify(index), tirx.FloorMod)
            if unknown := [x.b for x in found if ir.static_int(x.b) is None]:
                raise cannot_schedule(
                    f"block {part.name}, tensor {load.source.name}",
                    f"a remainder by {unknown[0]} in the index {index}, as a reshape leaves it",
                    "extents that are known where a tensor is reshaped",
                    "make the dimension static, or write the norm without the reshape",
                )
