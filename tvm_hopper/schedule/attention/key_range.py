"""The keys that a mask leaves to a tile of rows.

  Select(j <= i + 8 && i - 64 < j, S, -inf)                 rows i0 * 64 to i0 * 64 + 63
->
  from max(0, i0 * 64 - 63) to min(n, i0 * 64 + 72)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir as tvm_ir, sym, tirx
from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper.analysis.bounds import as_less_than

from .description import Attention, LoopAxis
from .scores import MINUS_INFINITY, constant, fold, mask_conditions


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

    def growth(self, row: Any) -> int | None:
        """Return by how much the base grows from row to row, None if that is not known."""
        if not ir.uses(self.base, row):
            return 0
        parts = sym.detect_linear_equation(self.base, [row])
        return ir.static_int(parts[0]) if len(parts) else None

    def of_rows(self, row: Any, rows: tuple[Any, Any], widest: bool) -> Any:
        """Return the base of the row that sees most keys, or fewest; None if it is not known."""
        step = self.growth(row)
        if not step:
            return None if step is None else self.base
        return ir.substitute(self.base, {row: rows[1] if (step > 0) == widest else rows[0]})


class MaskBounds:
    """The bounds that the masks of an attention set to keys, for the rows of a tile.

    - `attention`: whose masks.
    - `rows` ((Expr, Expr)): the first row of the tile, and the first one behind the last, which may
      not exist.
    - `analyzer`: knows the variables of the tile.
    """

    def __init__(self, attention: Attention, rows: tuple[Any, Any], analyzer: sym.Analyzer) -> None:
        self.attention, self.rows = attention, (rows[0], rows[1] - 1)
        self.analyzer = analyzer
        conditions, self._rest = mask_conditions(attention.score, attention.scale)
        self._bounds = [(_as_bound(term, attention.key.var), fill) for term, fill in conditions]

    @property
    def grow_with_rows(self) -> bool:
        """Whether later rows see more keys."""
        row = self.attention.row.var
        known = [x for x in self._taken() if x.growth(row)]
        return bool(known) and all(x.is_upper and (x.growth(row) or 0) > 0 for x in known)

    @property
    def leaves_computed(self) -> bool:
        """Whether scores inside of the bounds are more than products."""
        return not isinstance(self._rest, ir.Var) or any(x is None for x, _ in self._bounds)

    @property
    def band(self) -> tuple[int | None, int | None]:
        """The first key of row 0 and the one behind its last, where they move with the row."""
        row = self.attention.row.var
        ends: dict[bool, list[int]] = {False: [], True: []}
        for bound in self._taken():
            first = ir.simplify(bound.limit(ir.substitute(bound.base, {row: ir.cast_like(0, row)})))
            known = ir.static_int(first)
            if known is not None and bound.growth(row) == -bound.step:
                ends[bound.is_upper].append(known)
        return max(ends[False], default=None), min(ends[True], default=None)

    def _taken(self) -> list[_Bound]:
        """Return the bounds that keys may be left out by."""
        infinite = [x for x, fill in self._bounds if fill == MINUS_INFINITY and x is not None]
        every = [x for x, _ in self._bounds if x is not None]
        whole = len(every) == len(self._bounds) and _never_empty(
            every, self.attention.row, self.attention.key
        )
        return every if whole else infinite

    def key_range(self) -> tuple[Any, Any]:
        """Return the first key, and the first one behind the last, that some row sees.

        Keys that are masked by a finite score count for rows without any other: they are left out
        where each row has another one.
        """
        key, row = self.attention.key, self.attention.row
        end = ir.cast_like(self.attention.row.extent, self.rows[1])
        rows = self.rows[0], ir.simplify(T.min(self.rows[1] + 1, end) - 1, self.analyzer)
        low: Any = tirx.IntImm(ir.dtype_of(key.var), 0)
        high: Any = key.extent
        for bound in self._taken():
            base = bound.of_rows(row.var, rows, widest=True)
            if base is None:
                continue
            limit = ir.cast_like(bound.limit(base), key.var)
            if bound.is_upper:
                high = T.min(high, limit)
            else:
                low = T.max(low, limit)
        return low, high

    def edges(self, first: Any, last: Any) -> list[Any] | None:
        """Return when masks can hide one of some keys from a row; None if scores change anyway."""
        if self.leaves_computed:
            return None
        found: list[Any] = []
        for bound in (x for x, _ in self._bounds if x is not None):
            base = bound.of_rows(self.attention.row.var, self.rows, widest=False)
            if base is None:
                return None
            key = ir.cast_like(last if bound.is_upper else first, base) * abs(bound.step)
            if bound.is_upper:
                found.append(tirx.GE(key, ir.simplify(base)))
            else:
                found.append(tirx.LE(key, ir.simplify(0 - base)))
        return found


def masked_by_infinity(score: Any, scale: float, row: LoopAxis, key: LoopAxis) -> Any:
    """Mask by minus infinity where each row keeps a key: a masked one has no weight either way.

    A finite score that stands for "masked" may be the maximum of a row, and its product with the
    scale has an error that is no small number.
    """
    conditions, _ = mask_conditions(score, scale)
    bounds = [_as_bound(term, key.var) for term, _ in conditions]
    known = [x for x in bounds if x is not None]
    if not conditions or len(known) < len(bounds) or not _never_empty(known, row, key):
        return score

    def mask(expr: Any) -> Any:
        if isinstance(expr, tirx.Add):
            for added, other in ((expr.a, expr.b), (expr.b, expr.a)):
                if isinstance(added, tirx.Select) and mask_conditions(added, scale)[0]:
                    inside = fold(tirx.Add(other, added.true_value))
                    return mask(tirx.Select(added.condition, inside, added.false_value))
        if isinstance(expr, tirx.Select) and len(mask_conditions(expr, scale)[0]):
            return tirx.Select(expr.condition, mask(expr.true_value), constant(MINUS_INFINITY))
        return expr

    return mask(score)


def _as_bound(term: Any, key: Any) -> _Bound | None:
    """Read a comparison as a bound of the key, None for any other condition."""
    sides = as_less_than(term)
    if sides is None or "int" not in ir.dtype_of(sides[0]):
        return None
    parts = sym.detect_linear_equation(ir.simplify(sides[1] - sides[0]), [key])
    step = ir.static_int(parts[0]) if len(parts) else None
    return _Bound(parts[1], step) if step else None


def _never_empty(bounds: list[_Bound], row: LoopAxis, key: LoopAxis) -> bool:
    """Tell whether each row keeps a key; False where it is not known."""
    analyzer = sym.Analyzer()
    zero = tirx.IntImm(ir.dtype_of(row.var), 0)
    analyzer.bind(row.var, tvm_ir.Range.from_min_extent(zero, row.extent))
    uppers = [key.extent, *(x.limit(x.base) for x in bounds if x.is_upper)]
    lowers = [zero, *(x.limit(x.base) for x in bounds if not x.is_upper)]
    return all(analyzer.can_prove(low < high) for low in lowers for high in uppers)
