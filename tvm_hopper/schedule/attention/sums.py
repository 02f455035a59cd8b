"""Read the sums of softmax attention: of weights, of weighted values, of products.

L[i] += exp(s[i, j] - m[i])                                 WeightedSum, without a value
O[i, c] += Cast("float16", exp(s[i, j] - m[i]) / L[i]) * V[j, c]
S[i, j] += Q[i, k] * 0.5 * K[j, k]                          ScoreProduct
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule

from .conditions import call_name, same
from .definitions import PlainTensors
from .description import LoopAxis
from .factors import factors, find_exponential, rounded_to, split_exponent
from .scores import constant, to_float32


@dataclass(frozen=True)
class WeightedSum:
    """A sum over keys of weights, times values where `value` is given.

    - `key`: the axis summed over.
    - `exponent` (Expr): weights are its exponential, 0 where one of `where` is false; float32.
    - `base_two`: whether it is one of two.
    - `value` (TensorLoad or None): what weights multiply.
    - `row_where`, `under`, `factor`: conditions without which the whole row is 0, what the row is
      divided by, a constant.
    - `rounded`: the 16-bit type to which weights are rounded; empty: none.
    """

    key: LoopAxis
    exponent: Any
    base_two: bool
    where: tuple[Any, ...]
    value: Any
    row_where: tuple[Any, ...]
    under: tuple[Any, ...]
    factor: float
    rounded: str

    @property
    def scores(self) -> Any:
        """Return the exponent without what is subtracted from all of a row."""
        return split_exponent(self.exponent, self.key.var)[0]

    @property
    def shift(self) -> Any:
        """Return what is subtracted from the scores of a row, None for nothing."""
        return split_exponent(self.exponent, self.key.var)[1]

    def has_weights_of(self, other: WeightedSum) -> bool:
        """Tell whether two sums have the same weights, and values if both have some."""
        values = self.value is None or other.value is None or same(self.value, other.value)
        return (
            values
            and same(self.exponent, other.exponent)
            and self.base_two == other.base_two
            and len(self.where) == len(other.where)
            and all(map(same, self.where, other.where))
        )


@dataclass(frozen=True)
class ScoreProduct:
    """The product of queries and keys: the load of its sum, its operands, a constant factor."""

    load: Any
    depth: LoopAxis
    query: Any
    keys: Any
    factor: float


class Sums:
    """Reads the sums of a program; sums over as many keys share the variable of the keys."""

    def __init__(self, program: PlainTensors) -> None:
        self.program = program
        self._axes: list[tuple[str, LoopAxis]] = []

    def axis(self, name: str, var: Any, extent: Any) -> LoopAxis:
        """Return the axis of a name and an extent, the same one at each call."""
        for known, axis in self._axes:
            if known == name and same(axis.extent, extent):
                return axis
        axis = LoopAxis(self.program.bind(ir.Var(name, ir.dtype_of(var)), extent), extent)
        self._axes.append((name, axis))
        return axis

    def weighted(self, load: Any) -> WeightedSum | None:
        """Read a sum of weights, or of weighted values; None for any other load."""
        definition = self.program.reduction(load)
        if definition is None or definition.operation != "add" or len(definition.reduced) != 1:
            return None
        key = self.axis("j", definition.reduced[0], definition.extents()[0])
        term = self.program.expand(definition.at(list(load.indices), [key.var]))
        found = factors(term)
        exponential = find_exponential(found, key.var)
        if exponential is None:
            return None
        number, found = found.split_numbers()
        others = [x for x in found.over if not x.same_as(exponential)]
        values, rows = _split_by(others, key)
        if len(values) > 1 or _split_by(found.under, key)[0]:
            return None
        if values and not isinstance(values[0], ir.TensorLoad):
            raise cannot_schedule(
                f"block {definition.block}",
                f"values that are computed: {values[0]}",
                "elements of a tensor",
                "compute it in a function of its own",
            )
        inverses = [tirx.Div(constant(1.0), to_float32(x)) for x in rows]
        where, row_where = _split_by([to_float32(x) for x in found.where], key)
        return WeightedSum(
            key,
            to_float32(exponential.args[0]),
            call_name(exponential) == "exp2",
            tuple(where),
            values[0] if values else None,
            tuple(row_where),
            (*found.under, *inverses),
            number,
            rounded_to(term, exponential),
        )

    def product(self, scores: Any, key: LoopAxis) -> ScoreProduct:
        """Read the one product in the scores."""
        sums = self.program.loads(scores, "add")
        if len(sums) != 1:
            raise cannot_schedule(
                "function", f"scores of {len(sums)} sums", "one product of queries and keys"
            )
        definition = self.program.reduction(sums[0])
        assert definition is not None
        where = f"block {definition.block}"
        if len(definition.reduced) != 1:
            raise cannot_schedule(where, f"a sum over {len(definition.reduced)} axes", "one")
        depth = self.axis("k", definition.reduced[0], definition.extents()[0])
        term = self.program.expand(definition.at(list(sums[0].indices), [depth.var]))
        number, found = factors(term).split_numbers()
        over = found.over
        is_product = len(over) == 2 and all(isinstance(x, ir.TensorLoad) for x in over)
        if not is_product or found.under or found.where:
            raise cannot_schedule(
                where,
                f"the sum of {term}",
                "products of an element of the queries and one of the keys",
                "compute operands in functions of their own",
            )
        keys = [x for x in over if ir.depends_on(x, [key.var])]
        queries = [x for x in over if not ir.depends_on(x, [key.var])]
        if len(keys) != 1 or not all(ir.depends_on(x, [depth.var]) for x in over):
            sides = " and ".join(str(x.source.name) for x in over)
            raise cannot_schedule(
                where, f"a product of {sides}", "one operand with an axis of keys, one without"
            )
        return ScoreProduct(sums[0], depth, queries[0], keys[0], number)


def _split_by(exprs: Sequence[Any], axis: LoopAxis) -> tuple[list[Any], list[Any]]:
    """Split expressions into those that depend on an axis and the other ones."""
    moving = [x for x in exprs if ir.depends_on(x, [axis.var])]
    return moving, [x for x in exprs if not any(x.same_as(y) for y in moving)]
