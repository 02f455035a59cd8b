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
    """A bound of the keys of a row: `key < limit` or `key >= limit`."""

    is_upper: bool
    limit: Any


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
        limit = _extreme(bound, row.var, first_row, last_row)
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
    if not step:
        return None
    base = parts[1]
    if step < 0:  # 0 < base - |step| * key
        limit = base if step == -1 else tirx.floordiv(base - 1, -step) + 1
        return _Bound(True, limit)
    return _Bound(False, (0 - base if step == 1 else tirx.floordiv(0 - base, step)) + 1)


def _extreme(bound: _Bound, row: Any, first: Any, last: Any) -> Any:
    """Return the widest bound of some rows, None if it is not known."""
    if not ir.uses(bound.limit, row):
        return bound.limit
    parts = sym.detect_linear_equation(bound.limit, [row])
    step = ir.static_int(parts[0]) if len(parts) else None
    if step is None:
        return None
    at = last if (step > 0) == bound.is_upper else first
    return ir.substitute(bound.limit, {row: at})


def _never_empty(bounds: list[_Bound], attention: Attention) -> bool:
    """Tell whether each row keeps a key; False where it is not known."""
    analyzer = sym.Analyzer()
    row, count = attention.row, attention.key.extent
    zero = tirx.IntImm(ir.dtype_of(row.var), 0)
    analyzer.bind(row.var, tvm_ir.Range.from_min_extent(zero, row.extent))
    uppers = [count, *(x.limit for x in bounds if x.is_upper)]
    lowers = [zero, *(x.limit for x in bounds if not x.is_upper)]
    return all(analyzer.can_prove(low < high) for low in lowers for high in uppers)
