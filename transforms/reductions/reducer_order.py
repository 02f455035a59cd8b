"""Tell whether a reducer of tuples depends on the order of its operands.

(index, value) by a > b: of equal values the one on the right      threads meet in any order
(index, value) by a > b or (a == b and index a < index b)          the same from either side
"""

from __future__ import annotations

from itertools import product
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower


def check_order(where: str, reducer: Any) -> None:
    """Refuse reducers of tuples that are not commutative."""
    count = len(reducer.lhs)
    for numbers in product((1, 2), repeat=2 * count):
        found = [_combined(reducer, *x) for x in (_halves(numbers), _halves(numbers)[::-1])]
        if not all(map(tvm_ffi.structural_equal, *found)):
            raise cannot_lower(
                where,
                f"{', '.join(map(str, found[0]))} of {_halves(numbers)}, and "
                f"{', '.join(map(str, found[1]))} of the same in the other order",
                "a commutative rule, since threads combine in any order",
                "of equal values take the lower index: a > b or (a == b and index a < index b)",
            )


def _halves(numbers: tuple[int, ...]) -> list[tuple[int, ...]]:
    half = len(numbers) // 2
    return [numbers[:half], numbers[half:]]


def _combined(reducer: Any, one: tuple[int, ...], other: tuple[int, ...]) -> list[Any]:
    """Return what a reducer makes of two tuples of numbers."""
    values = zip([*reducer.lhs, *reducer.rhs], [*one, *other], strict=True)
    known = {var: tirx.const(x, ir.dtype_of(var)) for var, x in values}
    return [ir.simplify(ir.substitute(x, known)) for x in reducer.result]
