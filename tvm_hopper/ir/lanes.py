"""Find contiguous vector lanes in indices with quotients and remainders, which TVM misses."""

from __future__ import annotations

from math import gcd
from typing import Any

from tvm import sym, tirx

from .build import cast_like
from .rewrite import mutate, substitute
from .walk import is_const, static_int


def without_carry(index: Any, lane: Any, lanes: int) -> Any:
    """Take the lane out of quotients and remainders that no vector goes over the end of.

        (i * 2048 + j * 8 + lane) % 14336   ->   (i * 2048 + j * 8) % 14336 + lane
        (i * 2048 + j * 8 + lane) // 14336  ->   (i * 2048 + j * 8) // 14336

    TVM's simplifier does so for one product next to the lane, not for a sum of them.

    Parameters
    ----------
    index : Expr
        An integer expression.
    lane : Var
        Counts the lanes.
    lanes : int
        How many there are.
    """

    def visit(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        side, known = static_int(node.b), sym.Analyzer()
        start = known.simplify(substitute(node.a, {lane: 0}))
        own = cast_like(lane, node.a)
        if side is None or not is_const(known.simplify(node.a - start - own), 0):
            return node
        place = known.modular_set(start)
        step = gcd(int(place.coeff), side)
        if int(place.base) % step + lanes > step:
            return node
        rest = type(node)(start, node.b)
        return rest + own if isinstance(node, tirx.FloorMod) else rest

    return mutate(index, [(tirx.FloorDiv, visit), (tirx.FloorMod, visit)])
