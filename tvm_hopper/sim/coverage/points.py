"""Points of the outer variables: one per CTA, or per iteration of a CTA's tile loop.

Points are lists with the value of each outer variable at each point. A condition on
outer variables filters them, a loop repeats them; values of expressions come along.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_hopper.sim.coverage.nodes import Node, Variable, apply

MAX_POINTS = 1 << 24


class UndecidedError(Exception):
    """Indices do not determine it, or it would cost too much; the text has the reason."""


class Deadline:
    """The time by which a check has to end."""

    def __init__(self, budget_s: float) -> None:
        self.budget_s, self.end = budget_s, time.monotonic() + budget_s

    def check(self) -> None:
        """Give up if it has passed."""
        if time.monotonic() > self.end:
            raise UndecidedError(f"not decided within {self.budget_s:g} s")


class Points:
    """Values of the outer variables, one entry a point.

    - `cta` (numpy.ndarray): number of each point's CTA, (points,) int64; blockIdx.x varies fastest.
    """

    def __init__(
        self,
        cta: np.ndarray,
        env: dict[Variable, np.ndarray],
        parent: Points | None = None,
        index: np.ndarray | None = None,
    ) -> None:
        self.cta, self.env, self.parent, self.index = cta, env, parent, index
        self.memo: dict[Node, Any] = {}

    @staticmethod
    def of_grid(grid: Sequence[int], axes: Sequence[Variable]) -> Points:
        """Return one point for each CTA of a grid (x, y, z)."""
        if int(np.prod([int(g) for g in grid], dtype=object)) > MAX_POINTS:
            raise UndecidedError(f"a grid of {tuple(grid)} CTAs")
        x, y, z = (int(g) for g in grid)
        cta = np.arange(x * y * z, dtype=np.int64)
        values = (
            np.tile(np.arange(x, dtype=np.int64), y * z),
            np.tile(np.repeat(np.arange(y, dtype=np.int64), x), z),
            np.repeat(np.arange(z, dtype=np.int64), x * y),
        )
        return Points(cta, dict(zip(axes, values, strict=True)))

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.cta)

    def value(self, node: Node) -> Any:
        """Return the value of an expression of outer variables: an int, or (points,)."""
        if node.op == "const":
            return node.value
        if node.op == "var":
            return self._of(node.value)
        found = self.memo.get(node)
        if found is None:
            found = self._inherited(node)
        if found is None:
            args = [self.value(a) for a in node.args]
            found = apply(node, args)
        self.memo[node] = found
        return found

    def _of(self, variable: Variable) -> np.ndarray:
        found = self.env.get(variable)
        if found is None:
            if self.parent is None or self.index is None:
                raise KeyError(variable.name)
            found = self.env[variable] = self.parent._of(variable)[self.index]
        return found

    def _inherited(self, node: Node) -> Any:
        if self.parent is None or self.index is None or node not in self.parent.memo:
            return None
        found = self.parent.memo[node]
        return found[self.index] if isinstance(found, np.ndarray) else found

    def array(self, node: Node) -> np.ndarray:
        """Return the value of an expression, one entry a point."""
        return np.broadcast_to(np.asarray(self.value(node), np.int64), self.cta.shape)

    def where(self, condition: Node) -> Points:
        """Return the points at which a condition holds."""
        holds = self.value(condition)
        if not isinstance(holds, np.ndarray):
            return self if holds else self.take(np.zeros(0, np.int64))
        return self if holds.all() else self.take(np.flatnonzero(holds))

    def take(self, index: np.ndarray) -> Points:
        """Return some of the points."""
        return Points(self.cta[index], {}, self, index)

    def iterated(self, variable: Variable, extent: Node) -> Points:
        """Return each point once for each iteration of a loop, `variable` counting from 0."""
        iterations = np.maximum(self.array(extent), 0)
        total = int(iterations.sum())
        if total > MAX_POINTS:
            raise UndecidedError(f"{total} iterations of loop {variable.name} over all CTAs")
        index = np.repeat(np.arange(len(self), dtype=np.int64), iterations)
        begins = np.cumsum(iterations) - iterations
        iteration = np.arange(total, dtype=np.int64) - begins[index]
        points = self.take(index)
        points.env[variable] = iteration
        return points

    def repeated(self, variable: Variable, condition: Node) -> Points:
        """Return each point once for each iteration of a while loop."""
        iteration, here, parts, iterations = 0, np.arange(len(self), dtype=np.int64), [], []
        total = 0
        while len(here) and iteration <= variable.high:
            points = self.take(here)
            points.env[variable] = np.full(len(here), iteration, np.int64)
            holds = np.broadcast_to(points.value(condition), here.shape).astype(bool)
            here = here[holds]
            parts.append(here)
            iterations.append(np.full(len(here), iteration, np.int64))
            iteration += 1
            total += len(here)
            if total > MAX_POINTS or iteration > MAX_POINTS >> 8:
                raise UndecidedError(
                    f"more than {iteration} iterations of a loop over {variable.name}"
                )
        found = self.take(np.concatenate(parts) if parts else here)
        found.env[variable] = np.concatenate(iterations) if iterations else here
        return found
