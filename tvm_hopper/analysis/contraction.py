"""Recognise a multiply-add statement, in plain loops and in tiles.

    C[i, j] = C[i, j] + cast(A[i, k]) * cast(B[j, k])
  ->
    Contraction(products=(Product(factors=(A[i, k] after a cast, B[j, k] after a cast)),))
    Sides(left=(i,), right=(j,), reduction=(k,), batch=(), rest=())

The sum and the product may be in either order, casts around the factors or around the product.
Nothing is refused here: callers refuse unsupported forms with their own messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import FP8_DTYPES, HALF_DTYPES, OPERAND_DTYPES, exact_dtypes

from .updates import is_element

CASTS_NEEDED = (
    f"casts to {' or '.join(exact_dtypes('float32'))} alone, of integers to int32 or int64"
)


@dataclass(frozen=True)
class Factor:
    """One factor of a product, as it is written.

    - `expr`: the whole expression.
    - `casts`: types that it is cast to, the outermost first.
    - `load`: the load without its casts; None if the factor is computed inside the product.
    """

    expr: Any
    casts: tuple[str, ...]
    load: Any | None


@dataclass(frozen=True)
class Product:
    """One product that a statement adds, and the types that it is cast to, outermost first."""

    expr: tirx.Mul
    casts: tuple[str, ...]
    factors: tuple[Factor, Factor]

    @property
    def dtype(self) -> str:
        """Type in which the program multiplies, and to which it rounds the product."""
        return ir.dtype_of(self.expr)

    @property
    def loads(self) -> tuple[Any, Any]:
        """The loads of both factors, None for one that is computed inside the product."""
        return self.factors[0].load, self.factors[1].load

    def changed_values(self, accumulator: str) -> str:
        """Name the first cast that can change a value: the hardware multiplies operands as stored.

        - `accumulator`: type of the sum, to which the product may be cast.
        - returns: what is there, for an error message; `CASTS_NEEDED` says what is needed. Empty if
          there is no such cast. A factor of a type that is no operand's is not checked: such a type
          is refused by itself.
        """
        judged = [(f"the product {self.expr}", self.casts, accumulator)]
        for factor in self.factors:
            if factor.load is not None:
                tensor = factor.load.source
                if (dtype := ir.dtype_of(tensor)) in OPERAND_DTYPES:
                    judged.append((f"operand {tensor.name}", factor.casts, dtype))
        for what, casts, dtype in judged:
            halves = HALF_DTYPES if dtype in FP8_DTYPES else ()
            for cast in casts:
                if cast not in (dtype, *exact_dtypes(dtype), *halves):
                    return f"{what} cast to {cast}, which can change its value"
        return ""


@dataclass(frozen=True)
class Sides:
    """Variables of a product by what moves with them, each group in the order given.

    - `left`, `right`: they move the output and one of the factors.
    - `reduction`: they move both factors and not the output.
    - `batch`: they move the output and both factors.
    - `rest`: they move one factor alone, the output alone, or nothing.
    """

    left: tuple[Any, ...]
    right: tuple[Any, ...]
    reduction: tuple[Any, ...]
    batch: tuple[Any, ...]
    rest: tuple[Any, ...]


@dataclass(frozen=True)
class Contraction:
    """A statement that adds products to an element of a tensor.

    - `store`: the statement.
    - `products`: what it adds, in the order of the sum; at least one.
    - `initial`: value that the sum starts from, of the block's own `init`; None if it has none.
    """

    store: Any
    products: tuple[Product, ...]
    initial: Any | None = None

    @property
    def accumulator(self) -> Any:
        """The tensor that is added to."""
        return self.store.buffer

    @property
    def accumulator_dtype(self) -> str:
        """Type of the sum."""
        return ir.dtype_of(self.store.buffer)

    def sides(self, variables: Sequence[Any], product: Product | None = None) -> Sides:
        """Sort variables by what they move.

        - `variables` (sequence of Var): loop or iteration variables.
        - `product`: the product to look at, both of its factors loads; None: the first.
        - returns: `left` goes with the first factor, `right` with the second.
        - raises ValueError: a factor is computed inside the product.
        """
        first, second = (product or self.products[0]).loads
        if first is None or second is None:
            raise ValueError("a factor that is no load has no indices")
        groups: dict[tuple[bool, ...], list[Any]] = {}
        for var in variables:
            moved = tuple(ir.depends_on(x.indices, [var]) for x in (self.store, first, second))
            groups.setdefault(moved, []).append(var)

        def take(output: bool, left: bool, right: bool) -> tuple[Any, ...]:
            return tuple(groups.pop((output, left, right), ()))

        named = (
            take(True, True, False),
            take(True, False, True),
            take(False, True, True),
            take(True, True, True),
        )
        others = [var for group in groups.values() for var in group]
        rest = tuple(var for var in variables if any(var.same_as(x) for x in others))
        return Sides(*named, rest)


def find_contraction(statement: Any, init: Any = None) -> Contraction | None:
    """Split `C[...] = C[...] + x * y` into its parts.

    - `statement` (Stmt): the body of a block.
    - `init` (Stmt): the block's initial statement.
    - returns: None for every other statement: it is no store, does not add to its own element
      exactly once, or adds something that is no product after casts.
    """
    if not isinstance(statement, ir.BufferStore):
        return None
    terms = summands(statement.value)
    added = [term for term in terms if not is_element(term, statement)]
    products = [product for term in added if (product := _product(term)) is not None]
    if not products or len(products) != len(added) or len(added) != len(terms) - 1:
        return None
    initial = init.value if isinstance(init, ir.BufferStore) else None
    return Contraction(statement, tuple(products), initial)


def summands(value: Any) -> list[Any]:
    """Return the terms of a sum, in order; casts around a part of it keep the part whole."""
    if isinstance(value, tirx.Add):
        return [*summands(value.a), *summands(value.b)]
    return [value]


def _product(term: Any) -> Product | None:
    expr, casts = _without_casts(term)
    if not isinstance(expr, tirx.Mul):
        return None
    return Product(expr, casts, (_factor(expr.a), _factor(expr.b)))


def _factor(expr: Any) -> Factor:
    load, casts = _without_casts(expr)
    return Factor(expr, casts, load if isinstance(load, ir.TensorLoad) else None)


def _without_casts(expr: Any) -> tuple[Any, tuple[str, ...]]:
    """Return what is cast, and the types of the casts, outermost first."""
    casts = []
    while isinstance(expr, tirx.Cast):
        casts.append(ir.dtype_of(expr))
        expr = expr.value
    return expr, tuple(casts)


def may_be_product(node: Any) -> bool:
    """Tell a block that sums products of two loaded elements: no squares, nothing computed."""
    contraction = find_contraction(node.body, node.init)
    first, second = (None, None) if contraction is None else contraction.products[0].loads
    return first is not None and second is not None and not tvm_ffi.structural_equal(first, second)
