"""Recognise softmax attention in plain loops, however its steps are written.

    S[b, h, i, j] += Q[b, h, i, k] * K[b, h // 4, j, k]
    M[b, h, i] = max(M[b, h, i], S[b, h, i, j] * 0.125)
    E[b, h, i, j] = exp(S[b, h, i, j] * 0.125 - M[b, h, i])
    L[b, h, i] += E[b, h, i, j]
    O[b, h, i, c] += Cast("float16", E[b, h, i, j] / L[b, h, i]) * V[b, h // 4, j, c]
  ->
    Attention(query=Q[..], key=K[..], value=V[..], score=product, scale=0.125, ...)

Elementwise steps are replaced where they are read, so that only sums and maxima are matched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule

from .definitions import Definition, Program, same
from .factors import factors, find_exponential, rounded_to, split_exponent
from .scores import (
    FLOAT32,
    MINUS_INFINITY,
    call_name,
    constant,
    is_float,
    masks_as_choices,
    number,
    take_scale,
    to_float32,
    without_casts,
)

WHERE = "function"
SUM = "sum over keys of exp(score - maximum) * value"


@dataclass(frozen=True)
class Axis:
    """A loop of the attention: its variable and its extent."""

    var: Any
    extent: Any


@dataclass(frozen=True)
class Result:
    """A tensor that is stored for each row or element: its element and its float32 value."""

    buffer: Any
    indices: tuple[Any, ...]
    value: Any


@dataclass(frozen=True)
class Attention:
    """Softmax attention; expressions are in the variables of the axes.

    Attributes
    ----------
    leads : tuple of Axis
        Batches and heads, in the order of the output.
    row, key, column, depth : Axis
        Rows of queries; keys; columns of the output; terms of a score.
    query_load, key_load, value_load : TensorLoad
        The operands' elements.
    product, accumulator, row_sum, row_max : Var
        They stand for sums in `score` and in the results.
    score : Expr
        The scores divided by `scale`.
    scale : float
        A positive constant.
    base_two : bool
        Whether weights are powers of two, not of e.
    sink : Expr or None
        A score, divided by `scale`, of one more key without a value.
    probabilities : str
        The type that the plain program multiplies weights in.
    output, log_sum : Result
        What is stored; `log_sum` may be None.
    """

    leads: tuple[Axis, ...]
    row: Axis
    key: Axis
    column: Axis
    depth: Axis
    query_load: Any
    key_load: Any
    value_load: Any
    product: Any
    accumulator: Any
    row_sum: Any
    row_max: Any
    score: Any
    scale: float
    base_two: bool
    sink: Any
    probabilities: str
    output: Result
    log_sum: Result | None

    @property
    def exponent_scale(self) -> float:
        """What scores are multiplied by, as exponents of two."""
        return self.scale * (1.0 if self.base_two else math.log2(math.e))


@dataclass(frozen=True)
class _Weighted:
    """A sum of weights, of values times weights where `value` is given."""

    definition: Definition
    exponent: Any  # float32
    base_two: bool
    where: tuple[Any, ...]
    row_where: tuple[Any, ...]
    value: Any
    under: tuple[Any, ...]
    factor: float
    rounded: str


def recognize(func: tirx.PrimFunc) -> Attention:
    """Describe the attention that a function computes.

    Raises
    ------
    ScheduleError
        The function computes something else, or attention in a form that is not supported.
    """
    return _Recognizer(func).run()


class _Recognizer:
    def __init__(self, func: tirx.PrimFunc) -> None:
        self.program = Program(func)
        self.product, self.accumulator, self.row_sum, self.row_max = (
            ir.Var(x, FLOAT32) for x in ("product", "accumulator", "row_sum", "row_max")
        )
        self.sink: Any = None

    def run(self) -> Attention:
        """Describe the function."""
        output, value, load = self._output()
        row, column = self._row_and_column(load)
        value, load, indices, axes = self._split(output, value, load, (row, column))
        row_axis, column_axis = (self._axis(load, axes, x) for x in (row, column))
        leads = tuple(x for x in axes if not self._is_one_of(x, row_axis, column_axis))
        main = self._weighted(load)
        assert main is not None
        self.main, self.leads, self.row_axis = main, leads, row_axis
        scores, shift = split_exponent(main.exponent, self.key.var)
        self.scores, self.shift = scores, shift
        q, k, depth, factor = self._operands(scores)
        self._check_shift(shift)
        result = self._result(value)
        others = [x for x in self.program.outputs if not x.buffer.same_as(output.buffer)]
        logs = [self._log_sum(x) for x in others]
        if len(logs) > 1:
            raise cannot_schedule(
                f"tensor {logs[1].buffer.name}", "a third output", "the attention and log-sum-exp"
            )
        score, scale = self._score(scores, factor)
        return Attention(
            leads, row_axis, self.key, column_axis, depth, q, k, main.value,
            self.product, self.accumulator, self.row_sum, self.row_max,
            score, scale, main.base_two, self._scaled_sink(scale),
            main.rounded or FLOAT32,
            Result(output.buffer, tuple(indices), self._in_scores(result, scale)),
            replace(logs[0], value=self._in_scores(logs[0].value, scale)) if logs else None,
        )  # fmt: skip

    # ---- outputs

    def _output(self) -> tuple[Definition, Any, Any]:
        """Return the output that depends on the weighted sum, its expression, and the sum."""
        found = []
        for output in self.program.outputs:
            value = self._expression(output)
            sums = [x for x in self.program.loads(value, "add") if self._is_weighted_value(x)]
            if len(sums) > 1:
                raise cannot_schedule(
                    f"tensor {output.buffer.name}", f"{len(sums)} sums of weighted values", "one"
                )
            found += [(output, value, x) for x in sums]
        if not found:
            raise cannot_schedule(
                WHERE, f"no {SUM}", "softmax attention as plain loops", self._hint()
            )
        if len(found) > 1:
            names = " and ".join(str(x[0].buffer.name) for x in found)
            raise cannot_schedule(f"tensors {names}", "two outputs of the attention", "one")
        return found[0]

    def _hint(self) -> str:
        names = [x.block for x in self.program.definitions.values() if x.operation]
        return f"its reductions are {', '.join(names)}" if names else ""

    def _expression(self, output: Definition) -> Any:
        for var, domain in output.domains.items():
            self.program.bind(var, domain.extent)
        if output.operation:
            return tirx.BufferLoad(output.buffer, list(output.indices))
        return self.program.expand(output.value)

    def _is_weighted_value(self, load: Any) -> bool:
        found = self._weighted(load)
        return found is not None and found.value is not None

    def _weighted(self, load: Any) -> _Weighted | None:
        """Look at a sum: of weights, or of values times weights; None for another one."""
        definition = self.program.reduction(load)
        if definition is None or definition.operation != "add" or len(definition.reduced) != 1:
            return None
        extent = definition.extents()[0]
        if not hasattr(self, "key"):
            key = ir.Var("j", ir.dtype_of(definition.reduced[0]))
            self.key = Axis(self.program.bind(key, extent), extent)
        term = self.program.expand(definition.at(list(load.indices), [self.key.var]))
        found = factors(term)
        exponential = find_exponential(found, self.key.var)
        if exponential is None:
            return None
        if not same(extent, self.key.extent):
            key = ir.Var("j", ir.dtype_of(definition.reduced[0]))
            self.key = Axis(self.program.bind(key, extent), extent)
            return self._weighted(load)
        found.over = [x for x in found.over if not x.same_as(exponential)]
        factor = found.take_numbers()
        values = [x for x in found.over if ir.depends_on(x, [self.key.var])]
        rows = [x for x in found.over if not any(x.same_as(y) for y in values)]
        if len(values) > 1 or any(ir.depends_on(x, [self.key.var]) for x in found.under):
            return None
        if values and not isinstance(values[0], ir.TensorLoad):
            raise cannot_schedule(
                f"block {definition.block}",
                f"values that are computed: {values[0]}",
                "elements of a tensor",
                "compute it in a function of its own",
            )
        where = [to_float32(x) for x in found.where]
        moving = [x for x in where if ir.depends_on(x, [self.key.var])]
        return _Weighted(
            definition,
            to_float32(exponential.args[0]),
            call_name(exponential) == "exp2",
            tuple(moving),
            tuple(x for x in where if not any(x.same_as(y) for y in moving)),
            values[0] if values else None,
            (*found.under, *(tirx.Div(constant(1.0), to_float32(x)) for x in rows)),
            factor,
            rounded_to(term, exponential),
        )

    # ---- axes

    def _row_and_column(self, load: Any) -> tuple[int, int]:
        """Return which dimensions of the weighted sum are rows and columns; -1: no row."""
        definition = self.program.reduction(load)
        assert definition is not None
        own = list(definition.indices)
        for var in own:
            if isinstance(var, ir.Var):
                self.program.bind(var, definition.domains[var].extent)
        found = self._weighted(tirx.BufferLoad(load.source, own))
        assert found is not None
        where = f"block {definition.block}"
        columns = [
            n for n, x in enumerate(own)
            if isinstance(x, ir.Var)
            and ir.depends_on(found.value, [x])
            and not ir.depends_on(found.exponent, [x])
        ]  # fmt: skip
        if len(columns) != 1:
            need = "one axis of columns, which the values have and the scores lack"
            raise cannot_schedule(where, f"{len(columns)} axes of columns", need)
        scores, _ = split_exponent(found.exponent, self.key.var)
        query, key, _, _ = self._operands(scores)
        sides = [key, found.value]
        rows = [
            n for n, x in enumerate(own)
            if isinstance(x, ir.Var)
            and n not in columns
            and ir.depends_on(query, [x])
            and not ir.depends_on(sides, [x])
        ]  # fmt: skip
        if rows:
            order = self.program.loads(scores, "add")[0].indices

            def place(n: int) -> int:
                return max(i for i, x in enumerate(order) if ir.depends_on(x, [own[n]]))

            return max(rows, key=place), columns[0]
        units = [
            n for n, x in enumerate(load.source.shape) if ir.is_const(x, 1) and n not in columns
        ]
        return (units[-1] if units else -1), columns[0]

    def _split(
        self, output: Definition, value: Any, load: Any, dims: tuple[int, int]
    ) -> tuple[Any, Any, list[Any], list[Axis]]:
        """Split axes of the output that hold rows or columns and other axes.

        out[b, i, x]     of O[b, x // 64, i, x % 64]     ->     out[b, i, h * 64 + c]
        """
        indices = list(output.indices)
        axes = [Axis(x, output.domains[x].extent) for x in indices if isinstance(x, ir.Var)]
        for n in dims:
            index = load.indices[n] if n >= 0 else 0
            if not isinstance(index, tirx.FloorMod) or not isinstance(index.a, ir.Var):
                continue
            whole, size = index.a, index.b
            place = next(i for i, x in enumerate(axes) if x.var.same_as(whole))
            dtype = ir.dtype_of(whole)
            outer = Axis(ir.Var("h", dtype), ir.simplify(tirx.floordiv(axes[place].extent, size)))
            inner = Axis(ir.Var("c", dtype), size)
            for x in (outer, inner):
                self.program.bind(x.var, x.extent)
            axes[place : place + 1] = [outer, inner]
            by = {whole: outer.var * size + inner.var}
            value, load = (self.program.simplify(ir.substitute(x, by)) for x in (value, load))
            indices = [ir.substitute(x, by) for x in indices]
        return value, load, indices, axes

    def _axis(self, load: Any, axes: list[Axis], dim: int) -> Axis:
        """Return the axis along one dimension of the sum; a new one where it has one row."""
        index = load.indices[dim] if dim >= 0 else None
        for axis in axes:
            if index is not None and axis.var.same_as(index):
                return axis
        if index is None or ir.is_const(load.source.shape[dim], 1):
            one = tirx.IntImm(ir.dtype_of(self.key.var), 1)
            return Axis(ir.Var("i", ir.dtype_of(one)), one)
        raise cannot_schedule(
            f"tensor {load.source.name}",
            f"the index {index}, from which the output reads",
            "rows and columns of the sum along axes of the output",
        )

    def _is_one_of(self, axis: Axis, *others: Axis) -> bool:
        return any(axis.var.same_as(x.var) for x in others)

    # ---- scores

    def _operands(self, scores: Any) -> tuple[Any, Any, Axis, float]:
        """Return the elements of queries and keys, the axis summed over, and a constant factor."""
        sums = self.program.loads(scores, "add")
        if len(sums) != 1:
            raise cannot_schedule(
                WHERE, f"scores of {len(sums)} sums", "one product of queries and keys"
            )
        definition = self.program.reduction(sums[0])
        assert definition is not None
        where = f"block {definition.block}"
        if len(definition.reduced) != 1:
            raise cannot_schedule(where, f"a sum over {len(definition.reduced)} axes", "one")
        extent = definition.extents()[0]
        if not hasattr(self, "depth"):
            var = ir.Var("k", ir.dtype_of(definition.reduced[0]))
            self.depth = Axis(self.program.bind(var, extent), extent)
        depth = self.depth
        term = self.program.expand(definition.at(list(sums[0].indices), [depth.var]))
        found = factors(term)
        factor = found.take_numbers()
        loads = [x for x in found.over if isinstance(x, ir.TensorLoad)]
        if len(found.over) != 2 or len(loads) != 2 or found.under or found.where:
            raise cannot_schedule(
                where,
                f"the sum of {term}",
                "products of an element of the queries and one of the keys",
                "compute operands in functions of their own",
            )
        keys = [x for x in loads if ir.depends_on(x, [self.key.var])]
        queries = [x for x in loads if not ir.depends_on(x, [self.key.var])]
        if len(keys) != 1 or not all(ir.depends_on(x, [depth.var]) for x in loads):
            found_sides = " and ".join(str(x.source.name) for x in loads)
            raise cannot_schedule(
                where, f"a product of {found_sides}", "one operand with an axis of keys"
            )
        return queries[0], keys[0], depth, factor

    def _score(self, scores: Any, factor: float) -> tuple[Any, float]:
        """Return the scores by their product, divided by a constant, and the constant."""
        load = self.program.loads(scores, "add")[0]
        product: Any = self.product if factor == 1.0 else tirx.Mul(self.product, constant(factor))
        expr = self._replace(scores, lambda x: product if same(x, load) else None)
        for condition in reversed(self.main.where):
            expr = tirx.Select(condition, expr, constant(MINUS_INFINITY))
        left = self.program.loads(expr)
        if left:
            raise cannot_schedule(
                f"tensor {left[0].source.name}", "a reduction in the scores", "one product"
            )
        return take_scale(masks_as_choices(expr))

    def _check_shift(self, shift: Any) -> None:
        """Note whether exactly the maximum of the scores is subtracted from them."""
        self.shift_is_max = False
        if shift is None or self.main.where:
            return
        if isinstance(shift, tirx.Max):
            sides = (shift.a, shift.b), (shift.b, shift.a)
            maxima = [(x, y) for x, y in sides if self._is_max(x) and not self._reads_sums(y)]
            if maxima:
                self.shift_is_max, self.sink_in_shift = True, maxima[0][1]
                return
        self.sink_in_shift = None
        self.shift_is_max = self._is_max(shift)

    def _is_max(self, expr: Any) -> bool:
        load = without_casts(expr)
        return isinstance(load, ir.TensorLoad) and self._reduces(
            load, "max", lambda x: same(to_float32(x), self.scores)
        )

    def _reads_sums(self, expr: Any) -> bool:
        return bool(self.program.loads(expr))

    def _reduces(self, load: Any, operation: str, matches: Callable[[Any], bool]) -> bool:
        """Tell whether a load reads a reduction over keys of what matches."""
        found = self.program.reduction(load)
        if found is None or found.operation != operation or len(found.reduced) != 1:
            return False
        if not same(found.extents()[0], self.key.extent):
            return False
        return matches(self.program.expand(found.at(list(load.indices), [self.key.var])))

    def _is_any(self, load: Any) -> bool:
        """Tell a maximum that says whether a row has a score above minus infinity."""

        def is_finite(expr: Any) -> bool:
            while isinstance(expr, tirx.Cast):
                expr = expr.value
            if isinstance(expr, tirx.Not) and isinstance(expr.a, tirx.EQ):
                expr = tirx.NE(expr.a.a, expr.a.b)
            if not isinstance(expr, (tirx.NE, tirx.GT)) or not is_float(expr.a):
                return False
            against = number(expr.b)
            return against == MINUS_INFINITY and same(to_float32(expr.a), self.scores)

        return self._reduces(load, "max", is_finite)

    # ---- results

    def _replace(self, expr: Any, new: Callable[[Any], Any]) -> Any:
        def load(node: Any, mutator: Any) -> Any:
            found = new(node)
            return mutator.default_mutate(node) if found is None else found

        return ir.mutate(expr, [(ir.TensorLoad, load)])

    def _result(self, value: Any) -> Any:
        """Return an output's value in float32, by the running sums."""
        expr = self._by_running_sums(to_float32(value))
        if not self.shift_is_max and not self._is_normalized(expr):
            raise cannot_schedule(
                WHERE,
                "sums that are not divided by the sum of weights, with another shift than the "
                "maximum of the scores",
                "exp(score - maximum), or the quotient of both sums",
            )
        return expr

    def _by_running_sums(self, expr: Any) -> Any:
        expr = to_float32(self._replace(self._with_sink(expr), self._running))
        left = self.program.loads(expr)
        if left:
            definition = self.program.reduction(left[0])
            assert definition is not None
            raise cannot_schedule(
                f"block {definition.block}",
                "a reduction next to the attention",
                "outputs of its sums and of its maximum alone",
                "compute it in a function of its own",
            )
        return expr

    def _running(self, load: Any) -> Any:
        """Return what stands for the load of a reduction, None to leave it."""
        definition = self.program.reduction(load)
        if definition is None:
            return None
        if definition.operation == "max":
            if self._is_max(load):
                return self.row_max
            if self._is_any(load):
                exists = tirx.GT(self.row_max, constant(MINUS_INFINITY))
                return tirx.Cast(ir.dtype_of(load), exists)
            return None
        found = self._weighted(load)
        if found is None or not self._same_weights(found):
            return None
        value: Any = self.row_sum
        if found.value is not None:
            value = self.accumulator
        if found.factor != 1.0:
            value = value * constant(found.factor)
        for under in found.under:
            value = tirx.Div(value, self._by_running_sums(to_float32(under)))
        for condition in found.row_where:
            value = tirx.Select(self._by_running_sums(condition), value, constant(0.0))
        return value

    def _same_weights(self, found: _Weighted) -> bool:
        mine = self.main
        return (
            same(found.exponent, mine.exponent)
            and found.base_two == mine.base_two
            and len(found.where) == len(mine.where)
            and all(map(same, found.where, mine.where))
            and (found.value is None or same(found.value, mine.value))
        )

    def _with_sink(self, expr: Any) -> Any:
        """Take `sum + exp(sink - maximum)` for the sum, with one more key."""

        def add(node: Any, mutator: Any) -> Any:
            for total, extra in ((node.a, node.b), (node.b, node.a)):
                if self._is_sum(total) and call_name(extra) == (
                    "exp2" if self.main.base_two else "exp"
                ):
                    score, shift = split_exponent(extra.args[0], self.key.var)
                    if shift is not None and self.shift is not None and same(shift, self.shift):
                        self.sink = score
                        return total
            return mutator.default_mutate(node)

        return ir.mutate(expr, [(tirx.Add, add)])

    def _is_sum(self, expr: Any) -> bool:
        load = without_casts(expr)
        if not isinstance(load, ir.TensorLoad):
            return False
        found = self._weighted(load)
        return found is not None and found.value is None and self._same_weights(found)

    def _scaled_sink(self, scale: float) -> Any:
        if self.shift_is_max and self.sink_in_shift is not None and self.sink is None:
            return None  # it shifts alone, which cancels
        return None if self.sink is None else tirx.Mul(self.sink, constant(1.0 / scale))

    def _is_normalized(self, expr: Any) -> bool:
        def divide(node: Any, mutator: Any) -> Any:
            is_quotient = (
                isinstance(node.b, ir.Var)
                and node.b.same_as(self.row_sum)
                and not ir.uses(node.a, self.row_sum)
                and _is_linear(node.a, self.accumulator)
            )
            return constant(0.0) if is_quotient else mutator.default_mutate(node)

        rest = ir.mutate(expr, [(tirx.Div, divide)])
        states = (self.accumulator, self.row_sum)
        return not any(ir.uses(rest, x) for x in states)

    def _in_scores(self, expr: Any, scale: float) -> Any:
        """Let the maximum be of scaled scores where the running one is not."""
        if scale == 1.0:
            return expr
        return ir.substitute(expr, {self.row_max: tirx.Mul(self.row_max, constant(scale))})

    def _log_sum(self, output: Definition) -> Result:
        """Describe an output of one element a row."""
        value = self._expression(output)
        indices = [x for x in output.indices if isinstance(x, ir.Var)]
        mine = [*self.leads, self.row_axis]
        where = f"tensor {output.buffer.name}"
        for order in permutations(mine, len(indices)):
            extents = [(x.extent, output.domains[v].extent) for x, v in zip(order, indices, strict=True)]
            if not all(same(ir.simplify(a - b), ir.simplify(a - a)) for a, b in extents):
                continue
            by = {v: x.var for x, v in zip(order, indices, strict=True)}
            moved = self.program.simplify(ir.substitute(value, by))
            try:
                result = self._by_running_sums(to_float32(moved))
            except RuntimeError:
                continue
            if not self.shift_is_max:
                break
            return Result(
                output.buffer, tuple(ir.substitute(x, by) for x in output.indices), result
            )
        raise cannot_schedule(
            where,
            "a second output that is no function of the maximum and the sum of each row",
            "the logarithm of the sum of exponentials, maximum + log(sum)",
            "compute it in a function of its own",
        )


def _is_linear(expr: Any, var: Any) -> bool:
    """Tell a variable that is multiplied and divided by others."""
    if isinstance(expr, tirx.Mul):
        return _is_linear(expr.a, var) or _is_linear(expr.b, var)
    if isinstance(expr, tirx.Div):
        return _is_linear(expr.a, var)
    return isinstance(expr, ir.Var) and bool(expr.same_as(var))
