"""Find the loops over m, n and k around the multiply-add of a blockized block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir
from tvm_hopper.analysis.contraction import CASTS_NEEDED, Contraction, find_contraction
from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests.keys import WGMMA

NEED = "C[i, j] = C[i, j] + A[i, k] * B[j, k] in loops over i, j and k"
FIRST = "compute it into a separate buffer first"


@dataclass(frozen=True)
class MultiplyAdd:
    """One multiply-add block: loops over m, n and k around one store.

    `left` is the load that moves with m, `right` the one that moves with n.
    """

    realize: ir.SBlockRealize
    m: ir.For
    n: ir.For
    k: ir.For
    contraction: Contraction
    left: ir.TensorLoad
    right: ir.TensorLoad
    units: tuple[ir.For, ...]  # loops of extent 1
    key: str = WGMMA  # the annotation that requests it

    @property
    def block(self) -> ir.SBlock:
        """The annotated block."""
        return self.realize.block

    @property
    def store(self) -> ir.BufferStore:
        """The statement."""
        return self.contraction.store

    @property
    def where(self) -> str:
        """Name the block in an error message."""
        return f"block {self.block.name_hint}, {self.key}"

    @property
    def product_dtype(self) -> str:
        """Type in which the program multiplies, and to which it rounds each product."""
        return self.contraction.products[0].dtype


def match_multiply_add(realize: ir.SBlockRealize, key: str = WGMMA) -> MultiplyAdd:
    """Return what the block multiplies and adds.

    - `realize`: an annotated block, with the loops over a tile inside.
    - `key`: the annotation.
    - returns: m is the accumulator's first axis, whichever operand is first.
    - raises LoweringError: the block computes anything else.
    """
    block = realize.block
    where = f"block {block.name_hint}, {key}"
    loops, body = ir.loop_nest(block.body)
    predicates = [realize.predicate]
    if isinstance(body, ir.SBlockRealize):
        predicates.insert(0, body.predicate)
        body = body.block.body
    for predicate in predicates:
        if not ir.is_const(predicate, 1):
            raise cannot_lower(where, f"a predicate ({predicate})", "whole tiles", "pad the block")
    if not isinstance(body, ir.BufferStore):
        raise cannot_lower(
            where, type(body).__name__, NEED, "blockize the loops of the update alone"
        )
    contraction = _one_product(body, where)
    axes = {x.loop_var: x for x in loops if not ir.is_const(x.extent, 1)}
    units = tuple(x for x in loops if ir.is_const(x.extent, 1))
    sides = contraction.sides(list(axes))
    moving = (sides.left, sides.right, sides.reduction)
    if len(axes) != 3 or any(len(side) != 1 for side in moving):
        names = [var.name for var in axes]
        raise cannot_lower(where, f"{body.value} in loops over {names}", NEED)
    m, n, k = (axes[var] for (var,) in moving)
    left, right = contraction.products[0].loads
    first = next(x for x in body.indices if ir.depends_on(x, [m.loop_var, n.loop_var]))
    if not ir.depends_on(first, [m.loop_var]):
        m, n, left, right = n, m, right, left
    return MultiplyAdd(realize, m, n, k, contraction, left, right, units, key)


def _one_product(store: ir.BufferStore, where: str) -> Contraction:
    """Take the statement apart; refuse what one WGMMA does not compute."""
    contraction = find_contraction(store)
    if contraction is None or len(contraction.products) != 1:
        raise cannot_lower(where, f"{store.value}", NEED)
    (product,) = contraction.products
    for factor in product.factors:
        if factor.load is None:
            found = f"the operand {factor.expr}"
            raise cannot_lower(where, found, "operands loaded as they are", FIRST)
    if found := product.changed_values(contraction.accumulator_dtype):
        raise cannot_lower(where, found, CASTS_NEEDED, FIRST)
    return contraction


def product_blocks(root: Any) -> list[ir.SBlock]:
    """Return the blocks annotated for a warp group that are not lowered yet."""
    return ir.find_blocks(root, WGMMA)
