"""Split an expression into a part of the CTA and a part of its threads.

    (bx*256 + tx) // 100 * 37   =   outer: (bx*256) // 100 * 37
                                    inner: (r + tx) // 100 * 37    where key r = bx*256 % 100

    bx*64 + tx < M              =   tx < k              where key k = clip(M - bx*64, 0, 64)

The parts are exact. A key stands for an expression of outer variables. The inner part needs only
its remainder, or its distance cut to the range that matters, so that few different values occur:
CTAs with the same keys have the same inner parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tvm_hopper.sim.coverage.nodes import BOOLEAN, INNER, KEY, OUTER, Node, Nodes, Variable
from tvm_hopper.sim.coverage.points import Points, UndecidedError

_LINEAR = ("add", "sub", "mul", "fdiv", "fmod", "shl", "shr", "band")


@dataclass
class SplitSum:
    """`outer` plus the sum of `inner` terms, each times a number."""

    outer: Node
    inner: dict[Node, int] = field(default_factory=dict)


class Splitter:
    """Splits expressions at some points; `keys` are those that it had to make."""

    def __init__(self, nodes: Nodes, points: Points) -> None:
        self.nodes, self.points = nodes, points
        self.keys: list[Variable] = []
        self._key_nodes: dict[Node, Node] = {}
        self._sums: dict[Node, SplitSum] = {}

    # -- keys -------------------------------------------------------------------------------------

    def extent(self, outer: Node) -> tuple[int, int]:
        """Return the least and the greatest value of an outer expression at the points."""
        value = self.points.value(outer)
        if isinstance(value, np.ndarray):
            return (int(value.min()), int(value.max())) if value.size else (0, 0)
        return int(value), int(value)

    def key(self, outer: Node) -> Node:
        """Return a key for an outer expression; a number if it is the same at all points."""
        found = self._key_nodes.get(outer)
        if found is None:
            low, high = self.extent(outer)
            if low != high:
                self.keys.append(Variable(f"key{len(self.keys)}", low, high, KEY, outer))
                found = self.nodes.var(self.keys[-1])
            else:
                found = self.nodes.const(low)
            self._key_nodes[outer] = found
        return found

    def keyed(self, node: Node) -> Node:
        """Return an expression of inner variables and keys alone."""
        if not node.has(OUTER):
            return node
        if not node.has(INNER, KEY):
            return self.key(node)
        args = [self.keyed(a) for a in node.args]
        if node.op == "convert":
            return self.nodes.convert(args[0], *node.value)
        return self.nodes.make(node.op, *args)

    # -- sums -------------------------------------------------------------------------------------

    def sum(self, node: Node) -> SplitSum:
        """Return the two parts of an integer expression."""
        if node.unknown:
            raise UndecidedError(node.unknown)
        found = self._sums.get(node)
        if found is None:
            if not node.has(INNER, KEY):
                found = SplitSum(node)
            elif not node.has(OUTER) and node.op not in _LINEAR:
                found = self._inner(node)
            elif node.op in BOOLEAN:
                found = self._boolean(node)
            else:
                method = getattr(self, f"_{node.op}", None)
                found = method(node) if method is not None else self._inner(self.keyed(node))
            self._sums[node] = found
        return found

    def _inner(self, node: Node) -> SplitSum:
        if node.op == "const":
            return SplitSum(node)
        return SplitSum(self.nodes.zero, {node: 1})

    def _boolean(self, node: Node) -> SplitSum:
        held = self.condition(node)
        return SplitSum(held) if not held.has(INNER, KEY) else self._inner(held)

    def range_of(self, inner: dict[Node, int]) -> tuple[int, int]:
        """Return a range that holds a sum of inner terms."""
        low = sum(min(t.low * f, t.high * f) for t, f in inner.items())
        high = sum(max(t.low * f, t.high * f) for t, f in inner.items())
        return low, high

    def _added(self, a: SplitSum, b: SplitSum, sign: int = 1) -> SplitSum:
        inner = dict(a.inner)
        for term, factor in b.inner.items():
            inner[term] = inner.get(term, 0) + sign * factor
        outer = self.nodes.make("add" if sign > 0 else "sub", a.outer, b.outer)
        return SplitSum(outer, {term: factor for term, factor in inner.items() if factor})

    def _add(self, node: Node) -> SplitSum:
        return self._added(self.sum(node.args[0]), self.sum(node.args[1]))

    def _sub(self, node: Node) -> SplitSum:
        return self._added(self.sum(node.args[0]), self.sum(node.args[1]), -1)

    def _scaled(self, one: SplitSum, factor: int) -> SplitSum:
        outer = self.nodes.times(one.outer, factor)
        return SplitSum(outer, {term: f * factor for term, f in one.inner.items() if factor})

    def _mul(self, node: Node) -> SplitSum:
        a, b = self.sum(node.args[0]), self.sum(node.args[1])
        for one, other in ((a, b), (b, a)):
            if not other.inner and other.outer.constant is not None:
                return self._scaled(one, other.outer.constant)
        nodes = self.nodes
        result = SplitSum(nodes.make("mul", a.outer, b.outer))
        for one, other in ((a, b), (b, a)):
            if one.inner:  # the other's outer part scales it
                factor, whole = self.key(other.outer), nodes.total(one.inner)
                if factor.constant is not None:
                    part = {t: f * factor.constant for t, f in one.inner.items()}
                    result = self._added(result, SplitSum(nodes.zero, part))
                else:
                    result = self._added(result, self._inner(nodes.make("mul", whole, factor)))
        if a.inner and b.inner:
            product = nodes.make("mul", nodes.total(a.inner), nodes.total(b.inner))
            result = self._added(result, self._inner(product))
        return result

    def _divided(self, one: SplitSum, divisor: int) -> tuple[SplitSum, Node]:
        """Return the quotient by a positive number, and the inner part of what remains."""
        nodes, by = self.nodes, self.nodes.const(divisor)
        whole = {t: f // divisor for t, f in one.inner.items() if f % divisor == 0}
        rest = {t: f % divisor for t, f in one.inner.items() if f % divisor}
        whole_rest = {t: one.inner[t] // divisor for t in rest if one.inner[t] // divisor}
        outer = nodes.make("fdiv", one.outer, by)
        if not rest:
            return SplitSum(outer, whole), self.key(nodes.make("fmod", one.outer, by))
        over = self.key(nodes.make("fmod", one.outer, by))
        left = nodes.make("add", nodes.total(rest), over)
        quotient = self._added(SplitSum(outer, whole), SplitSum(nodes.zero, whole_rest))
        return self._added(quotient, self._inner(nodes.make("fdiv", left, by))), left

    def _fdiv(self, node: Node) -> SplitSum:
        divisor = node.args[1].constant
        if divisor is None or divisor <= 0:
            return self._inner(self.keyed(node))
        return self._divided(self.sum(node.args[0]), divisor)[0]

    def _fmod(self, node: Node) -> SplitSum:
        divisor = node.args[1].constant
        if divisor is None or divisor <= 0:
            return self._inner(self.keyed(node))
        one = self.sum(node.args[0])
        if not any(f % divisor for f in one.inner.values()):
            return SplitSum(self.nodes.make("fmod", one.outer, node.args[1]))
        _, left = self._divided(one, divisor)
        return self._inner(self.nodes.make("fmod", left, node.args[1]))

    def _truncated(self, node: Node) -> SplitSum:
        one = self.sum(node.args[0])
        low = self.extent(one.outer)[0] + self.range_of(one.inner)[0]
        if low < 0 or node.args[1].low <= 0:
            return self._inner(self.keyed(node))
        return self._fdiv(node) if node.op == "tdiv" else self._fmod(node)

    _tdiv = _tmod = _truncated

    def _shr(self, node: Node) -> SplitSum:
        places = node.args[1].constant
        if places is None or not 0 <= places < 62:
            return self._inner(self.keyed(node))
        return self._divided(self.sum(node.args[0]), 1 << places)[0]

    def _shl(self, node: Node) -> SplitSum:
        places = node.args[1].constant
        if places is None or not 0 <= places < 62:
            return self._inner(self.keyed(node))
        return self._scaled(self.sum(node.args[0]), 1 << places)

    def _band(self, node: Node) -> SplitSum:
        """Split a mask into runs of bits: each is a quotient of a remainder."""
        mask = node.args[1].constant
        if mask is None or mask < 0:
            return self._inner(self.keyed(node))
        nodes, result, low = self.nodes, SplitSum(self.nodes.zero), 0
        while mask >> low:
            if not mask >> low & 1:
                low += 1
                continue
            high = low
            while mask >> high & 1:
                high += 1
            kept = nodes.make("fmod", node.args[0], nodes.const(1 << high))
            part = nodes.make("fdiv", kept, nodes.const(1 << low))
            result = self._added(result, self._scaled(self.sum(part), 1 << low))
            low = high
        return result

    def _min(self, node: Node) -> SplitSum:
        return self._least(self.sum(node.args[0]), self.sum(node.args[1]))

    def _max(self, node: Node) -> SplitSum:
        a, b = (self._scaled(self.sum(arg), -1) for arg in node.args)
        return self._scaled(self._least(a, b), -1)

    def _least(self, a: SplitSum, b: SplitSum) -> SplitSum:
        """Return a + min(0, b - a); of the outer part of b - a a cut distance is needed inside."""
        nodes, difference = self.nodes, self._added(b, a, -1)
        if not difference.inner:
            if not a.inner:
                return SplitSum(nodes.make("min", a.outer, b.outer))
            return self._added(a, SplitSum(nodes.make("min", difference.outer, nodes.zero)))
        low, high = self.range_of(difference.inner)
        cut = self._clip(difference.outer, -high, -low)
        beyond = nodes.make("min", nodes.make("sub", difference.outer, cut), nodes.zero)
        inside = nodes.make("add", nodes.total(difference.inner), self.key(cut))
        least = self._inner(nodes.make("min", inside, nodes.zero))
        return self._added(self._added(a, SplitSum(beyond)), least)

    def _clip(self, outer: Node, low: int, high: int) -> Node:
        above = self.nodes.make("max", outer, self.nodes.const(low))
        return self.nodes.make("min", above, self.nodes.const(high))

    def _select(self, node: Node) -> SplitSum:
        cond = self.condition(node.args[0])
        if cond.constant is not None:
            return self.sum(node.args[1] if cond.constant else node.args[2])
        a, b = self.sum(node.args[1]), self.sum(node.args[2])
        nodes = self.nodes
        if not cond.has(INNER, KEY):
            outer = nodes.make("select", cond, a.outer, b.outer)
            if a.inner == b.inner:
                return SplitSum(outer, a.inner)
            which, difference = self.key(cond), nodes.zero
        else:
            outer, which = b.outer, cond
            difference = self.key(nodes.make("sub", a.outer, b.outer))
        yes = nodes.make("add", nodes.total(a.inner), difference)
        chosen = nodes.make("select", which, yes, nodes.total(b.inner))
        return self._added(SplitSum(outer), self._inner(chosen))

    def _convert(self, node: Node) -> SplitSum:
        one = self.sum(node.args[0])
        (low, high), (least, most) = self.extent(one.outer), self.range_of(one.inner)
        if node.low <= low + least and high + most <= node.high:
            return one
        return self._inner(self.keyed(node))

    # -- conditions -------------------------------------------------------------------------------

    def condition(self, node: Node) -> Node:
        """Return a condition over outer variables alone, or over inner ones and keys alone."""
        if node.unknown:
            raise UndecidedError(node.unknown)
        if not node.has(INNER, KEY) or not node.has(OUTER):
            return node
        if node.op in ("lt", "eq"):
            return self._compared(node)
        if node.op in ("and", "or", "not"):
            parts = [self.condition(a) for a in node.args]
            if any(p.has(INNER, KEY) for p in parts):
                parts = [p if p.has(INNER, KEY) else self.key(p) for p in parts]
            return self.nodes.make(node.op, *parts)
        return self.keyed(node)

    def _compared(self, node: Node) -> Node:
        nodes = self.nodes
        difference = self._added(self.sum(node.args[0]), self.sum(node.args[1]), -1)
        if not difference.inner:
            return nodes.make(node.op, difference.outer, nodes.zero)
        low, high = self.range_of(difference.inner)
        last = -low if node.op == "lt" else -low + 1
        cut = self.key(self._clip(difference.outer, -high - 1, last))
        return nodes.make(
            node.op, nodes.make("add", nodes.total(difference.inner), cut), nodes.zero
        )

    def conditions(self, node: Node) -> list[Node]:
        """Return conditions that hold together where one does."""
        if node.op == "and":
            return [c for a in node.args for c in self.conditions(a)]
        if node.op == "not" and node.args[0].op == "or":
            return [
                c for a in node.args[0].args for c in self.conditions(self.nodes.make("not", a))
            ]
        return [self.condition(node)]
