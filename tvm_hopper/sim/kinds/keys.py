"""Numbers that agree in two CTAs only if an expression behaves alike in both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, sym, tirx

from tvm_hopper.sim.kinds.flow import BLOCK, DATA, Flow
from tvm_hopper.sim.kinds.grid_values import GridValues, NotOfBlockError
from tvm_hopper.sim.kinds.operands import is_place
from tvm_hopper.sim.kinds.reach import UNBOUNDED, Reach
from tvm_hopper.sim.tir import dtype_of, nodes_in, numpy_dtype, short_name, statement_text

_COMPARE = ("LT", "LE", "GT", "GE", "EQ", "NE")
_NOTHING = Reach(0, 0)
MAX_TABLE = 1 << 22  # numbers of one expression: CTAs times iterations of loops times threads


class UnprovableError(Exception):
    """CTAs may differ in more than coordinates; the text names the place."""


@dataclass(frozen=True)
class Sum:
    """A part of the block index, and the part that threads and loops add."""

    block: Any
    added: Reach


class Keys:
    """Evaluates expressions as keys: one number for each CTA."""

    def __init__(self, flow: Flow, values: GridValues) -> None:
        self.flow, self.values = flow, values
        self.analyzer = sym.Analyzer()
        self.busy: set[Any] = set()
        for var, extent in flow.extents.items():
            self._bind(var, tirx.IntImm("int32", 0), extent)
        for var, loop in flow.loops.items():
            if not flow.taint(loop.min):
                self._bind(var, loop.min, loop.extent)

    def _bind(self, var: Any, low: Any, extent: Any) -> None:
        if isinstance(extent, tirx.IntImm) and isinstance(low, tirx.IntImm):
            self.analyzer.bind(var, ir.Range.from_min_extent(low, extent))

    def of(self, expr: Any) -> list[np.ndarray]:
        """Return keys of an expression; none if it is alike in all CTAs.

        - raises UnprovableError: it depends on the block by way of memory.
        """
        taint = self.flow.taint(expr)
        if DATA in taint:
            raise UnprovableError(
                f"{statement_text(expr)} depends on the block index by way of memory"
            )
        if BLOCK not in taint:
            return []
        try:
            value = self.values.of(expr)
        except NotOfBlockError:
            return self._mixed(expr)
        return [value] if isinstance(value, np.ndarray) else []

    def _mixed(self, expr: Any) -> list[np.ndarray]:
        kind = type(expr).__name__
        if kind == "Var":
            return self._variable(expr)
        if kind in _COMPARE:
            left, right = self.sum(expr.a), self.sum(expr.b)
            if left is not None and right is not None:
                block = left.block - right.block
                added = left.added.plus(right.added.times(-1))
                return [added.side(kind, block)] if isinstance(block, np.ndarray) else []
        remainder = self._remainder(expr)
        if remainder is not None:
            return _arrays(remainder)
        total = self.sum(expr)
        if total is not None:
            return _arrays(total.block)
        table = self.table(expr)
        if table is not None:
            return [np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)]
        return [key for child in children_of(expr) for key in self.of(child)]

    def _remainder(self, expr: Any) -> Any:
        """Return `block mod n` for an expression `(block + others) mod n`; None for another one."""
        kind = type(expr).__name__
        if kind == "BitwiseAnd" and isinstance(expr.b, tirx.IntImm):
            value, divisor = expr.a, int(expr.b) + 1
            if divisor < 1 or divisor & (divisor - 1):
                return None
        elif kind in ("FloorMod", "Mod") and isinstance(expr.b, tirx.IntImm):
            value, divisor = expr.a, int(expr.b)
        else:
            return None
        total = self.sum(value)
        if total is None or (kind == "Mod" and np.min(total.block) + total.added.low < 0):
            return None  # truncation towards zero makes another rule of negative numbers
        return total.block % divisor

    def table(self, expr: Any) -> np.ndarray | None:
        """Return an expression's values for each loop iteration and thread, a row for each CTA.

        Iterations that a CTA does not run are 0; their number is a separate key, since a loop's
        extent steers its body. None: the expression depends on more, or the table is too large.
        """
        axes: dict[Any, np.ndarray] = {}
        iterations: list[tuple[Any, Any, Any]] = []
        size, waiting, met = self.values.total, [expr], set()
        while waiting:
            for var in nodes_in(waiting.pop(), ir.Var):
                if var in met or var in self.values.env or var in self.values.block_vars:
                    continue
                met.add(var)
                if var in self.flow.binds:
                    waiting.append(self.flow.binds[var])
                elif var in self.flow.loops:
                    loop = self.flow.loops[var]
                    iterations.append((var, loop.min, loop.extent))
                elif isinstance(self.flow.extents.get(var), tirx.IntImm):
                    axes[var] = np.arange(int(self.flow.extents[var]), dtype=np.int64)
                else:
                    return None
        try:
            for var, low, extent in iterations:
                first, count = self.values.of(low), self.values.of(extent)
                most = int(np.max(first + count))
                axes[var] = np.arange(int(np.min(first)), most, dtype=np.int64)
            for numbers in axes.values():
                size *= max(len(numbers), 1)
            if not axes or size > MAX_TABLE:
                return None
            values = self.values.over(axes)
            found, taken = values.of(expr), True
            for var, low, extent in iterations:
                first = values.of(low)
                taken = taken & (values.env[var] >= first)
                taken = taken & (values.env[var] < first + values.of(extent))
        except NotOfBlockError:
            return None
        shape = (self.values.total, *map(len, axes.values()))
        return np.broadcast_to(np.where(taken, found, 0), shape).reshape(self.values.total, -1)

    def _variable(self, var: Any) -> list[np.ndarray]:
        """Return keys of the sources of a variable or a buffer."""
        root = self.flow.root(var)
        if root in self.busy:  # a cycle: its other sources are visited already
            return []
        sources = list(self.flow.stores.get(root, ()))
        if var in self.flow.binds:
            sources.append(self.flow.binds[var])
        if var in self.flow.loops:
            sources += [self.flow.loops[var].min, self.flow.loops[var].extent]
        if not sources:
            raise UnprovableError(f"{var} depends on the block index")
        self.busy.add(root)
        found = [key for source in sources for key in self.of(source)]
        self.busy.discard(root)
        return found

    def _number(self, expr: Any) -> int | None:
        """Return a number that is the same in all CTAs."""
        try:
            value = self.values.of(expr)
        except NotOfBlockError:
            return None
        return value if isinstance(value, int) else None

    def _loop(self, loop: Any) -> Sum | None:
        """Return the range of a loop variable: its first value and its number of iterations."""
        low = self.sum(loop.min)
        try:
            most = int(np.max(self.values.of(loop.extent)))
        except NotOfBlockError:
            bound = self.analyzer.const_int_bound(loop.extent)
            most = min(bound.max_value, UNBOUNDED)
        return None if low is None else Sum(low.block, low.added.plus(Reach(0, max(most - 1, 0))))

    def sum(self, expr: Any) -> Sum | None:
        """Split an integer expression into a sum; None if it is no such sum."""
        if numpy_dtype(dtype_of(expr)).kind not in "iu":
            return None
        try:
            return Sum(self.values.of(expr), _NOTHING)
        except NotOfBlockError:
            pass
        kind = type(expr).__name__
        if kind in ("Add", "Sub"):
            left, right = self.sum(expr.a), self.sum(expr.b)
            if left is None or right is None:
                return None
            if kind == "Add":
                return Sum(left.block + right.block, left.added.plus(right.added))
            return Sum(left.block - right.block, left.added.plus(right.added.times(-1)))
        if kind == "Mul":
            for one, other in ((expr.a, expr.b), (expr.b, expr.a)):
                factor, part = self._number(one), self.sum(other)
                if factor is not None and part is not None:
                    return Sum(part.block * factor, part.added.times(factor))
        if kind == "Var" and expr in self.flow.binds:
            return self.sum(self.flow.binds[expr])
        if kind == "Var" and expr in self.flow.loops:
            return self._loop(self.flow.loops[expr])
        if kind == "Cast" and numpy_dtype(dtype_of(expr.value)).kind in "iu":
            return self.sum(expr.value)
        if not self.flow.taint(expr):
            bound = self.analyzer.const_int_bound(expr)
            low, high = max(bound.min_value, -UNBOUNDED), min(bound.max_value, UNBOUNDED)
            return Sum(0, Reach(low, high))
        return None


def _arrays(value: Any) -> list[np.ndarray]:
    return [value] if isinstance(value, np.ndarray) else []


def children_of(expr: Any) -> list[Any]:
    """Return the expressions that one is made of."""
    kind = type(expr).__name__
    if kind == "TensorLoad":
        return [*expr.indices, expr.source]
    if kind == "Call":
        if short_name(expr) == "buffer_data":
            return []
        if is_place(expr):  # the contents do not matter, as in `Flow.taint`
            return list(expr.args[0].indices)
        return list(expr.args)
    names = ("a", "b", "value", "condition", "true_value", "false_value", "base", "stride", "lanes")
    return [
        getattr(expr, name)
        for name in names
        if hasattr(expr, name) and not isinstance(getattr(expr, name), int)
    ]
