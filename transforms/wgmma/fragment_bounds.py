"""Compare columns of a register tile with a bound that a thread computes once for each row.

    for g, h, e in unroll(16, 2, 2):                      column(g, e) = 8 g + 2 (t % 4) + e
        S[...] = select(j0 * 128 + column(g, e) <= row(h) + n, S[...], -inf)
  ->
    for h in unroll(2): bound[h] = row(h) + n - j0 * 128 - 2 (t % 4)
    for g, h, e in unroll(16, 2, 2):
        S[...] = select(8 g + e <= bound[h], S[...], -inf)

One comparison with a constant is left for each element. As indices of rows and columns the terms
would be a sum of a dozen instructions. Part of LowerWgmma.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir

COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
MOST, MOST_FACTOR = 2**30, 2**20  # of a bound, and of what columns are multiplied with


@dataclass(frozen=True)
class RowBounds:
    """RowBounds that rows have, and the store that compares with them.

    - `store`: the statement, in terms of `place`, a row of a thread, and `step`, a column of it.
    - `registers`: for each bound its registers, one for each row of a thread.
    - `values`: for each bound what it is, in terms of the nest's row and of a thread's first
      column.
    """

    store: ir.BufferStore
    place: ir.Var
    step: ir.Var
    registers: tuple[ir.Var, ...]
    values: tuple[Any, ...]

    def set_all(self, rows: int, at: Callable[[Any], dict[Any, Any]]) -> Any:
        """Compute the bounds of a thread's rows; `at` places the loops at a row's first column."""

        def one(place: Any) -> ir.Stmt:
            known = at(place)
            return ir.seq(
                [
                    ir.BufferStore(x, ir.simplify(ir.substitute(value, known)), [place])
                    for x, value in zip(self.registers, self.values, strict=True)
                ]
            )

        return ir.make_loop("row", rows, one, unroll=True)


def take_bounds(store: ir.BufferStore, column: ir.Var, rows: int) -> RowBounds | None:
    """Find comparisons of a column with what does not change along a row; None if there is none."""
    place, step = ir.Var("place", "int32"), ir.Var("step", "int32")
    registers: list[ir.Var] = []
    values: list[Any] = []

    def compare(node: Any, mutator: Any) -> Any:
        found = _along(node, column)
        if found is None:
            return mutator.default_mutate(node)
        factor, rest = found
        bound = ir.new_buffer(f"bound_{len(values)}", (rows,), "int32", "local")
        registers.append(bound)
        values.append(_within(rest - ir.cast_like(column * factor, rest)))
        return type(node)(step * factor, tirx.BufferLoad(bound, [place]))

    new = ir.mutate(store, [(kind, compare) for kind in COMPARISONS])
    return RowBounds(new, place, step, tuple(registers), tuple(values)) if values else None


def _within(bound: Any) -> Any:
    """Return a bound as 32 bits: columns of a tile, times a factor, are far below the limits."""
    if ir.dtype_of(bound) == "int32":
        return bound
    most = tirx.IntImm("int64", MOST)
    return tirx.Cast("int32", tirx.max(tirx.min(bound, most), -most))


def _along(node: Any, column: ir.Var) -> tuple[int, Any] | None:
    """Return k and b of a comparison that says `k * column < b`, with any sign in its place."""
    if ir.dtype_of(node.a) not in ("int32", "int64") or ir.find_all(node, ir.TensorLoad):
        return None
    parts = sym.detect_linear_equation(ir.simplify(node.a - node.b), [column])
    factor = ir.static_int(parts[0]) if len(parts) else None
    return (factor, ir.simplify(-parts[1])) if factor and abs(factor) < MOST_FACTOR else None
