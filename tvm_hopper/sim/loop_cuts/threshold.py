"""Conditions on a loop variable that change only a few times.

    if k > 0: ...            if 1 <= tile * 16 + k: ...            if k == 40: ...

They depend on nothing but loop variables, block indices and parameters, so that they are evaluated
for every iteration of the loop before it begins. Iterations are left out where no condition
changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir

from tvm_hopper.sim.protocol.expr import Closure, Env, compile_expr
from tvm_hopper.sim.tir import nodes_in

MIN_ITERATIONS = 3  # first, middle and last
MAX_INSIDE = 1 << 12  # iterations of an inner loop that a condition may also depend on


@dataclass(frozen=True)
class Threshold:
    """One condition in the body of one loop.

    - `var` (Var): of the loop.
    - `outer` (tuple of Var): of the loops around it, outermost first.
    - `inner` (tuple of (Var, range)): inner loops that it depends on; at most one.
    - `before` (tuple of (Var, closure)): values that are bound before it, in order.
    - `test`: the condition.
    """

    var: Any
    outer: tuple[Any, ...]
    inner: tuple[tuple[Any, range], ...]
    before: tuple[tuple[Any, Closure], ...]
    test: Closure

    def truths(
        self, known: Mapping[Any, int], around: Sequence[int], iterations: range
    ) -> np.ndarray:
        """Return the condition in each iteration, shape (iterations, iterations of the inner loop).

        - `known` (dict): block indices and parameters.
        - `around`: values of the variables of `outer`.
        - `iterations`: values of the loop variable.
        - raises ValueError: it depends on something else.
        """
        env: Env = {**known, **dict(zip(self.outer, around, strict=False))}
        env[self.var] = np.asarray(iterations)[:, None]
        for var, values in self.inner:
            env[var] = np.asarray(values)[None, :]
        for var, value in self.before:
            env[var] = value(env)
        found = self.test(env)
        if not isinstance(found, (bool, int, np.bool_, np.ndarray)):
            raise ValueError("a condition depends on more than iterations, blocks and parameters")
        width = max((len(values) for _, values in self.inner), default=1)
        return np.broadcast_to(np.asarray(found, bool), (len(iterations), width))


def threshold_of(
    node: Any,
    var: Any,
    outer: Sequence[Any],
    inside: Mapping[Any, range | None],
    bound: Mapping[Any, Any],
    scalars: Iterable[Any],
) -> Threshold | None:
    """Return a condition as one on iterations; None if it depends on more than is known.

    - `inside` (dict): values of the loop variables inside; None where they are not constant.
    - `bound` (dict): expressions of variables that are bound before it, in order.
    - `scalars` (iterable of Var): block indices and parameters.
    """
    leaves = _leaves(node, bound)
    inner = [(leaf, inside[leaf]) for leaf in inside if leaf in leaves]
    ranges = [(leaf, values) for leaf, values in inner if values is not None]
    if len(ranges) < len(inner) or len(ranges) > 1 or any(len(r) > MAX_INSIDE for _, r in ranges):
        return None
    before = tuple((v, compile_expr(value)) for v, value in bound.items() if v in leaves)
    found = Threshold(var, tuple(outer), tuple(ranges), before, compile_expr(node))
    try:
        with np.errstate(divide="ignore"):  # for values that no launch has
            found.truths(dict.fromkeys(scalars, 1), [0] * len(outer), range(2))
    except (ValueError, ZeroDivisionError):
        return None
    return found


def _leaves(node: Any, bound: Mapping[Any, Any]) -> set[Any]:
    leaves: set[Any] = set()
    todo = [node]
    while todo:
        found = nodes_in(todo.pop(), ir.Var)
        for leaf in found:
            if leaf not in leaves:
                leaves.add(leaf)
                if leaf in bound:
                    todo.append(bound[leaf])
    return leaves


def iterations_to_run(
    iterations: int, period: int, truths: Iterable[np.ndarray]
) -> tuple[int, int]:
    """Return how many iterations run at the beginning and at the end of a loop.

    At least a period each; the number between is a multiple of the period. No condition changes
    from one period to the next in the iterations left out and the period before them.
    """
    changes = np.zeros(max(iterations - period, 0), bool)
    for truth in truths:
        changes |= (truth[:-period] != truth[period:]).any(axis=1)
    places = [-1, *np.flatnonzero(changes).tolist(), iterations - period]
    best = (iterations, 0)
    for low, high in itertools.pairwise(places):
        first, last = max(low + 1 + period, period), max(iterations - period - high, period)
        between = (iterations - first - last) // period * period
        while iterations - between < MIN_ITERATIONS:
            between -= period
        if between > 0 and iterations - between < sum(best):
            best = (iterations - between - last, last)
    return best
