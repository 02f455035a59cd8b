"""Row programs over several dimensions, as in group norms.

S[n, g] += X[n, g * 10 + k, h, w]                          over k, h, w
Y[n, c, h, w] = X[n, c, h, w] * S[n, c // 10] * W[c]
->
S[r // 32, r % 32] += X[..]                                 r < 32 * batch, over k < 10 * 64 * 64
Y[..] = X[..] * S[r // 32, r % 32] * W[r % 32 * 10 + j // 4096]
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.memory_bound.inline import inline_moves, inline_parts, inline_permutations
from tvm_hopper.schedule.memory_bound.numbers import is_numbered, number_block
from tvm_hopper.schedule.memory_bound.program import MemoryProgram, Part


def inline_rows(program: MemoryProgram, recompute: bool = False) -> list[Part]:
    """Inline elementwise blocks, and count rows and their elements by one loop each.

    Programs whose reductions have one axis stay as they are.

    - `recompute`: whether to inline what is expensive, too, if it has one value for each element.
    - raises ScheduleError: a reduction is over several axes that are not the last ones of what it
      reads.
    """
    inline_permutations(program)
    if any(len(x.reduced) > 1 for x in program.parts):
        inline_moves(program)
    parts = inline_parts(program, recompute)
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
        number_block(program.sch, part, rows, ir.simplify(columns))
    program.look_again()
    for part in program.parts:
        _check_remainders(part)
    return program.parts


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
