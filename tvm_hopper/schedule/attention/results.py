"""Write what a program stores in terms of running sums.

  Select(any[i], Cast("float16", O[i, c] / L[i]), 0)      with O, L and any over all keys
->
  Select(row_max > -inf, accumulator / row_sum, 0)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule

from .conditions import call_name, same
from .description import States
from .factors import split_exponent
from .scores import MINUS_INFINITY, constant, number, to_float32, without_casts
from .sums import Sums, WeightedSum


class RunningResults:
    """Rewrites results of one attention.

    - `sink` (Expr or None): the score of one more key, if the results that were rewritten have one.
    - `asks_for_keys` (bool): whether they tell rows without a key from others.
    """

    def __init__(self, sums: Sums, main: WeightedSum, states: States) -> None:
        self.sums, self.program, self.main, self.states = sums, sums.program, main, states
        self.sink: Any = None
        self.asks_for_keys = False
        self.with_sink: bool | None = None  # whether sums that were taken have it

    def value(self, expr: Any) -> Any:
        """Return an expression of the program in float32, by the running sums.

        - raises ScheduleError: it reads other reductions, or sums that depend on what is subtracted
          from the scores.
        """
        earlier, self.sink = self.sink, None
        found = self._rewrite(to_float32(expr))
        self._note_sink(found, earlier)
        if not self._subtracts_maximum() and not self._is_quotient_of_sums(found):
            raise cannot_schedule(
                "function",
                "sums of exponentials that are not divided by each other, of scores minus "
                "something else than their maximum",
                "exp(score - maximum), or the quotient of both sums",
            )
        return found

    def _note_sink(self, found: Any, earlier: Any) -> None:
        """Refuse sums with a sink next to sums without it, or with another one."""
        own, self.sink = self.sink, earlier if self.sink is None else self.sink
        if not ir.uses(found, self.states.row_sum):
            return
        differs = own is not None and earlier is not None and not same(own, earlier)
        if differs or self.with_sink not in (None, own is not None):
            raise cannot_schedule(
                "function", "sums with a sink next to others", "one sum of weights in all results"
            )
        self.with_sink = own is not None

    def _rewrite(self, expr: Any) -> Any:
        expr = self.program.replace_load(self._take_sink(expr), self._running)
        left = self.program.loads(expr)
        if left:
            definition = self.program.reduction(left[0])
            assert definition is not None
            raise cannot_schedule(
                f"block {definition.block}",
                "a reduction next to the attention",
                "results of its sums and its maximum alone",
                "compute it in a function of its own",
            )
        return to_float32(expr)

    def _running(self, load: Any) -> Any:
        """Return what stands for the load of a reduction, None for another load."""
        if self._is_maximum(load):
            return self.states.row_max
        if self._is_any(load):
            self.asks_for_keys = True
            exists = tirx.GT(self.states.row_max, constant(MINUS_INFINITY))
            return tirx.Cast(ir.dtype_of(load), exists)
        found = self.sums.weighted(load)
        if found is not None:
            found = self._without_sink(found)
        if found is None or not found.has_weights_of(self.main):
            return None
        states = self.states
        value: Any = states.row_sum if found.value is None else states.accumulator
        if found.factor != 1.0:
            value = value * constant(found.factor)
        for under in found.under:
            value = tirx.Div(value, self._rewrite(to_float32(under)))
        for condition in found.row_where:
            value = tirx.Select(self._rewrite(condition), value, constant(0.0))
        return value

    # ---- maxima

    def _subtracts_maximum(self) -> bool:
        """Tell whether exponents are scores minus their maximum, or minus that or a sink."""
        shift = self.main.shift
        if shift is None or self.main.where:
            return False
        if not isinstance(shift, tirx.Max):
            return self._is_maximum(shift)
        for largest, other in ((shift.a, shift.b), (shift.b, shift.a)):
            if self._is_maximum(largest):
                return self.sink is not None and same(to_float32(other), to_float32(self.sink))
        return False

    def _is_maximum(self, expr: Any) -> bool:
        if self.main.where:  # weights of masked keys are left out, and their scores are not
            return False
        return self._is_largest(expr, lambda x: same(to_float32(x), self.main.scores))

    def _is_any(self, expr: Any) -> bool:
        """Tell a maximum over keys of whether they have a score above minus infinity."""

        def is_finite(expr: Any) -> bool:
            while isinstance(expr, tirx.Cast):
                expr = expr.value
            if isinstance(expr, tirx.Not) and isinstance(expr.a, tirx.EQ):
                expr = tirx.NE(expr.a.a, expr.a.b)
            return (
                isinstance(expr, (tirx.NE, tirx.GT))
                and number(expr.b) == MINUS_INFINITY
                and same(to_float32(expr.a), self.main.scores)
            )

        return self._is_largest(expr, is_finite)

    def _is_largest(self, expr: Any, matches: Callable[[Any], bool]) -> bool:
        """Tell the maximum over all keys of what matches."""
        load = without_casts(expr)
        found = self.program.reduction(load) if isinstance(load, ir.TensorLoad) else None
        if found is None or found.operation != "max" or len(found.reduced) != 1:
            return False
        key = self.main.key
        if not same(found.extents()[0], key.extent):
            return False
        return matches(self.program.expand(found.at(list(load.indices), [key.var])))

    # ---- sums

    def _take_sink(self, expr: Any) -> Any:
        """Take `sum + exp(sink - maximum)` for the sum, with one more key."""
        name = "exp2" if self.main.base_two else "exp"

        def add(node: Any, mutator: Any) -> Any:
            for total, more in ((node.a, node.b), (node.b, node.a)):
                if call_name(more) == name and self._is_sum(total):
                    score, shift = split_exponent(more.args[0], self.main.key.var)
                    if shift is not None and same(shift, self.main.shift):
                        self.sink = score
                        return total
            return mutator.default_mutate(node)

        return ir.mutate(expr, [(tirx.Add, add)])

    def _without_sink(self, found: WeightedSum) -> WeightedSum:
        """Take one key more than there are, behind the last, for a sink: without a value."""
        key = self.main.key
        if found.value is not None or not _is_one(found.key.extent - key.extent):
            return found

        def at(place: Any) -> Any:
            moved = ir.substitute(found.exponent, {found.key.var: place})
            return self.program.simplify(moved)

        score, shift = split_exponent(at(key.extent), key.var)
        if shift is None or self.main.shift is None or not same(shift, self.main.shift):
            return found
        self.sink = score
        return replace(found, key=key, exponent=at(key.var))

    def _is_sum(self, expr: Any) -> bool:
        load = without_casts(expr)
        found = self.sums.weighted(load) if isinstance(load, ir.TensorLoad) else None
        return found is not None and found.value is None and found.has_weights_of(self.main)

    def _is_quotient_of_sums(self, expr: Any) -> bool:
        """Tell whether both sums occur as a quotient alone."""
        states = self.states

        def divide(node: Any, mutator: Any) -> Any:
            by_sum = isinstance(node.b, ir.Var) and node.b.same_as(states.row_sum)
            if by_sum and _is_multiple(node.a, states.accumulator):
                return constant(0.0)
            return mutator.default_mutate(node)

        rest = ir.mutate(expr, [(tirx.Div, divide)])
        return not any(ir.uses(rest, x) for x in (states.accumulator, states.row_sum))


def _is_one(extent: Any) -> bool:
    return ir.is_const(ir.simplify(extent), 1)


def _is_multiple(expr: Any, var: Any) -> bool:
    """Tell a variable, or its product with a constant."""
    if isinstance(expr, tirx.Mul):
        sides = (expr.a, expr.b), (expr.b, expr.a)
        return any(_is_multiple(x, var) and number(y) is not None for x, y in sides)
    return isinstance(expr, ir.Var) and bool(expr.same_as(var))
