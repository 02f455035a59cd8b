"""Columns of an accumulator that an epilogue takes from several places.

    for i, j in grid(64, 128):
        D[i, j] = f(acc[i, j // 8 * 16 + j % 8], acc[i, j // 8 * 16 + j % 8 + 8])
  ->
    ColumnRead(start=0, step=16), ColumnRead(start=8, step=16)

Registers come in eights of columns: two reads of one lane's elements lie in one thread where both
begin at multiples of eight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir as tvm_ir, sym

from tvm_hopper import ir

from .divisors import divides

COLUMNS = 8  # that registers come in


@dataclass(frozen=True)
class ColumnRead:
    """The g-th eight columns of a nest are those of the accumulator from `start + g * step` on."""

    start: Any
    step: int

    def first(self, g: Any) -> Any:
        """Return the accumulator's column that the g-th eight begin with."""
        return ir.simplify(self.start + g * self.step)


def column_read(index: Any, loop: ir.For) -> ColumnRead | None:
    """Read an index of the accumulator's columns by the loop over a nest's; None if it is other."""
    extent = ir.static_int(loop.extent)
    if extent is None or extent % COLUMNS or not ir.is_const(loop.min, 0):
        return None
    group, inside = (ir.Var(x, ir.dtype_of(loop.loop_var)) for x in ("g", "r"))
    analyzer = sym.Analyzer()
    analyzer.bind(group, tvm_ir.Range(0, extent // COLUMNS))
    analyzer.bind(inside, tvm_ir.Range(0, COLUMNS))

    def at(g: Any, r: Any) -> Any:
        return ir.simplify(ir.substitute(index, {loop.loop_var: g * COLUMNS + r}), analyzer)

    start = at(0, 0)
    step = ir.static_int(ir.simplify(at(1, 0) - start)) if extent > COLUMNS else COLUMNS
    if step is None or step % COLUMNS or not divides(COLUMNS, start):
        return None
    even = ir.simplify(at(group, inside) - (start + group * step + inside), analyzer)
    return ColumnRead(start, step) if ir.is_const(even, 0) else None
