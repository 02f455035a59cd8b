"""The keys that a mask leaves to a tile of rows.

  Select(j <= i + 8 && i - 64 < j, S, -inf)                 rows i0 * 64 to i0 * 64 + 63
->
  from max(0, i0 * 64 - 63) to min(n, i0 * 64 + 72)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir as tvm_ir
from tvm import sym, tirx
from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper.analysis.bounds import as_less_than

from .description import Attention
from .scores import MINUS_INFINITY, mask_conditions


@dataclass(frozen=True)
class _Bound:
    """A bound of the keys of a row: `0 < base + step * key`."""

    base: Any
    step: int

    @property
    def is_upper(self) -> bool:
        """Whether keys lie below it."""
        return self.step < 0

    def limit(self, base: Any) -> Any:
        """Return the first key, or the first one behind the last, for a value of the base."""
        size = abs(self.step)
        return tirx.floordiv(base - 1 if self.is_upper else 0 - base, size) + 1

    def of_rows(self, row: Any, first: Any, last: Any) -> Any:
        """Return the widest limit of some rows, None if it is not known."""
        if not ir.uses(self.base, row):
            return self.limit(self.base)
        parts = sym.detect_linear_equation(self.base, [row])
        step = ir.static_int(parts[0]) if len(parts) else None
        return (
            None
            if step is None
            else self.limit(ir.substitute(self.base, {row: last if step > 0 else first}))
        )


def key_range(attention: Attention, first_row: Any, last_row: Any) -> tuple[Any, Any]:
    """Return the first key, and the first one behind the last, that some row of a tile sees.

    Keys that are masked by a finite score count for rows without any other: they are left out where
    each row has another one.
    """
    key, row = attention.key, attention.row
    bounds: list[tuple[_Bound | None, float]] = [
        (_as_bound(term, attention), fill)
        for term, fill in mask_conditions(attention.score, attention.scale)
    ]
    infinite = [x for x, fill in bounds if fill == MINUS_INFINITY and x is not None]
    every = [x for x, _ in bounds if x is not None]
    taken = every if len(every) == len(bounds) and _never_empty(every, attention) else infinite
    low: Any = tirx.IntImm(ir.dtype_of(key.var), 0)
    high: Any = key.extent
    for bound in taken:
        limit = bound.of_rows(row.var, first_row, last_row)
        if limit is None:
            continue
        limit = ir.cast_like(limit, key.var)
        if bound.is_upper:
            high = T.min(high, limit)
        else:
            low = T.max(low, limit)
    return low, high


def _as_bound(term: Any, attention: Attention) -> _Bound | None:
    """Read a comparison as a bound of the key, None for any other condition."""
    sides = as_less_than(term)
    if sides is None or "int" not in ir.dtype_of(sides[0]):
        return None
    key = attention.key.var
    parts = sym.detect_linear_equation(ir.simplify(sides[1] - sides[0]), [key])
    step = ir.static_int(parts[0]) if len(parts) else None
    return _Bound(parts[1], step) if step else None


def _never_empty(bounds: list[_Bound], attention: Attention) -> bool:
    """Tell whether each row keeps a key; False where it is not known."""
    analyzer = sym.Analyzer()
    row, count = attention.row, attention.key.extent
    zero = tirx.IntImm(ir.dtype_of(row.var), 0)
    analyzer.bind(row.var, tvm_ir.Range.from_min_extent(zero, row.extent))
    uppers = [count, *(x.limit(x.base) for x in bounds if x.is_upper)]
    lowers = [zero, *(x.limit(x.base) for x in bounds if not x.is_upper)]
    return all(analyzer.can_prove(low < high) for low in lowers for high in uppers)
