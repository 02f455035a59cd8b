"""Recognise `C[i, j] = C[i, j] + A[i, k] * B[j, k]` in a blockized block, whatever its spelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.dtypes import EXACT_DTYPES, OPERAND_DTYPES
from tvm_hopper.keys import WGMMA


@dataclass(frozen=True)
class MultiplyAdd:
    """One multiply-add block: loops over m, n and k around one store.

    `left` is the load that moves with m, `right` the one that moves with n.
    """

    realize: ir.SBlockRealize
    m: ir.For
    n: ir.For
    k: ir.For
    store: ir.BufferStore
    left: ir.TensorLoad
    right: ir.TensorLoad
    units: tuple[ir.For, ...]  # loops of extent 1

    @property
    def block(self) -> ir.SBlock:
        """The annotated block."""
        return self.realize.block

    @property
    def where(self) -> str:
        """Name the block in an error message."""
        return f"block {self.block.name_hint}, {WGMMA}"

    @property
    def product_dtype(self) -> str:
        """Type in which the program multiplies, and to which it rounds each product."""
        terms = [_behind_casts(term)[0] for term in (self.store.value.a, self.store.value.b)]
        return next(ir.dtype_of(term) for term in terms if isinstance(term, tirx.Mul))


def match_multiply_add(realize: ir.SBlockRealize) -> MultiplyAdd:
    """Return what the block multiplies and adds; refuse every other computation by name."""
    block = realize.block
    where = f"block {block.name_hint}, {WGMMA}"
    need = "C[i, j] = C[i, j] + A[i, k] * B[j, k] in loops over i, j and k"
    loops, body = ir.loop_nest(block.body)
    if isinstance(body, ir.SBlockRealize):
        if not ir.is_const(body.predicate, 1):
            raise cannot_lower(
                where, f"a predicate ({body.predicate})", "whole tiles", "pad the block"
            )
        body = body.block.body
    if not ir.is_const(realize.predicate, 1):
        raise cannot_lower(
            where, f"a predicate ({realize.predicate})", "whole tiles", "pad the block"
        )
    if not isinstance(body, ir.BufferStore):
        raise cannot_lower(
            where, type(body).__name__, need, "blockize the loops of the update alone"
        )
    left, right = _product(body, where, need)
    axes = [loop for loop in loops if not ir.is_const(loop.extent, 1)]
    units = tuple(loop for loop in loops if ir.is_const(loop.extent, 1))

    def moves(load: Any, loop: ir.For) -> bool:
        return ir.depends_on(load, [loop.loop_var])

    kinds = {
        (moves(body.indices, x), moves(left.indices, x), moves(right.indices, x)): x for x in axes
    }
    m, n, k = (True, True, False), (True, False, True), (False, True, True)
    if len(axes) != 3 or set(kinds) != {m, n, k}:
        raise cannot_lower(
            where, f"{body.value} in loops over {[x.loop_var.name for x in axes]}", need
        )
    return _in_order(MultiplyAdd(realize, kinds[m], kinds[n], kinds[k], body, left, right, units))


def _in_order(found: MultiplyAdd) -> MultiplyAdd:
    """Name the operands so that m is the accumulator's first axis."""
    first = next(
        index
        for index in found.store.indices
        if ir.depends_on(index, [found.m.loop_var, found.n.loop_var])
    )
    if ir.depends_on(first, [found.m.loop_var]):
        return found
    return MultiplyAdd(
        found.realize, found.n, found.m, found.k, found.store, found.right, found.left, found.units
    )


def _product(store: ir.BufferStore, where: str, need: str) -> tuple[Any, Any]:
    value = store.value
    if not isinstance(value, tirx.Add):
        raise cannot_lower(where, f"{value}", need)
    terms = [value.a, value.b]
    sums = [t for t in terms if _is_load_of(t, store)]
    products = [(t, p) for t in terms if isinstance(p := _behind_casts(t)[0], tirx.Mul)]
    if len(sums) != 1 or len(products) != 1:
        raise cannot_lower(where, f"{value}", need)
    term, product = products[0]
    _check_casts(where, f"the product {product}", term, ir.dtype_of(store.buffer))
    loads = []
    for operand in (product.a, product.b):
        load, _ = _behind_casts(operand)
        if not isinstance(load, ir.TensorLoad):
            raise cannot_lower(
                where,
                f"the operand {operand}",
                "operands loaded as they are",
                "compute it into a buffer of its own first",
            )
        dtype = ir.dtype_of(load.source)
        if dtype in OPERAND_DTYPES:  # of another type the plan says that it is not served
            _check_casts(where, f"operand {load.source.name}", operand, dtype)
        loads.append(load)
    return loads[0], loads[1]


def _check_casts(where: str, what: str, expr: Any, dtype: str) -> None:
    """Refuse casts that change values: WGMMA multiplies the operands exactly as they are."""
    for cast in _behind_casts(expr)[1]:
        if cast not in (dtype, *EXACT_DTYPES):
            raise cannot_lower(
                where,
                f"{what} cast to {cast}, which can change its value",
                f"casts to {' or '.join(EXACT_DTYPES)} alone",
                "compute it into a buffer of its own first",
            )


def _is_load_of(expr: Any, store: ir.BufferStore) -> bool:
    return (
        isinstance(expr, ir.TensorLoad)
        and expr.source.same_as(store.buffer)
        and all(a.same_as(b) for a, b in zip(expr.indices, store.indices, strict=True))
    )


def _behind_casts(expr: Any) -> tuple[Any, list[str]]:
    """Return what is cast, and the types of the casts, outermost first."""
    casts = []
    while isinstance(expr, tirx.Cast):
        casts.append(ir.dtype_of(expr))
        expr = expr.value
    return expr, casts
