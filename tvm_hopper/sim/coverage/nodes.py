"""Integer expressions over a launch: built once, simplified by ranges, evaluated on numpy arrays.

    (blockIdx.x * 64 + threadIdx.x) // 8        a `Node` over two `Variable`s

Equal expressions are one object, so that shared parts of statements are evaluated once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvm_hopper.sim.integers import maximum, minimum
from tvm_hopper.sim.machine.lanes import tdiv, tmod

FAR = 1 << 80  # beyond any index: an end of a range that is not known
OUTER, INNER, KEY = "outer", "inner", "key"


class Variable:
    """An integer in [low, high].

    `role`: an `OUTER` variable is the CTA's (block indices, loops over its tiles), an `INNER` one
    its threads' and their loops'; a `KEY` stands for an expression of outer variables,
    `definition`.
    """

    __slots__ = ("definition", "high", "low", "name", "role")

    def __init__(
        self, name: str, low: int, high: int, role: str, definition: Node | None = None
    ) -> None:
        self.name, self.low, self.high, self.role = name, low, high, role
        self.definition = definition


class Node:
    """One expression: `op` of `args`, in [low, high].

    `value` is the number of a constant, the `Variable`, or (bits, signed) of a conversion;
    `unknown` names the dependence that indices do not determine, or is empty.
    """

    __slots__ = ("args", "high", "low", "op", "unknown", "uses", "value")

    def __init__(self, op: str, args: tuple[Node, ...], value: Any, low: int, high: int) -> None:
        self.op, self.args, self.value, self.low, self.high = op, args, value, low, high
        self.uses: frozenset[Variable] = frozenset().union(*(a.uses for a in args))
        self.unknown: str = next((a.unknown for a in args if a.unknown), "")

    @property
    def constant(self) -> int | None:
        """Return the number that it always is; None if it varies."""
        return int(self.value) if self.op == "const" else None

    def has(self, *roles: str) -> bool:
        """Return whether it depends on a variable of one of some roles."""
        return any(v.role in roles for v in self.uses)


def _safe(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Let a division by zero be one by 1: it is where no thread comes."""

    def divide(a: Any, b: Any) -> Any:
        return function(a, np.where(b == 0, 1, b) if isinstance(b, np.ndarray) else b or 1)

    return divide


def _shift(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def shift(a: Any, b: Any) -> Any:
        return function(a, np.clip(b, 0, 62) if isinstance(b, np.ndarray) else min(max(b, 0), 62))

    return shift


def _select(cond: Any, yes: Any, no: Any) -> Any:
    return np.where(cond, yes, no) if isinstance(cond, np.ndarray) else yes if cond else no


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fdiv": _safe(lambda a, b: a // b),
    "fmod": _safe(lambda a, b: a % b),
    "tdiv": _safe(tdiv),
    "tmod": _safe(tmod),
    "min": minimum,
    "max": maximum,
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "band": lambda a, b: a & b,
    "bor": lambda a, b: a | b,
    "bxor": lambda a, b: a ^ b,
    "shl": _shift(lambda a, b: a << b),
    "shr": _shift(lambda a, b: a >> b),
    "select": _select,
}
BOOLEAN = ("lt", "eq", "and", "or", "not")


def convert(value: Any, bits: int, signed: bool) -> Any:
    """Return a value modulo 2**bits, as a type of so many bits holds it."""
    if bits >= 64:  # int64 holds it already; no index of an unsigned 64-bit type is beyond
        return value
    half = (1 << (bits - 1)) if signed else 0
    return ((value + half) & ((1 << bits) - 1)) - half


class Nodes:
    """Makes nodes, each once."""

    def __init__(self) -> None:
        self._made: dict[Any, Node] = {}
        self.zero, self.one = self.const(0), self.const(1)

    def _node(self, op: str, args: tuple[Node, ...], value: Any, low: int, high: int) -> Node:
        key = (op, value, *map(id, args))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = Node(op, args, value, low, high)
        return found

    def const(self, value: int) -> Node:
        """Return a number."""
        value = int(value)
        return self._node("const", (), value, value, value)

    def var(self, variable: Variable) -> Node:
        """Return a variable; its only value, if it has one."""
        if variable.low == variable.high:
            return self.const(variable.low)
        node = self._node("var", (), variable, variable.low, variable.high)
        node.uses = frozenset((variable,))
        return node

    def unknown(self, why: str) -> Node:
        """Return a value that no index tells; `why` names it."""
        node = self._node("unknown", (), why, -FAR, FAR)
        node.unknown = why
        return node

    def convert(self, node: Node, bits: int, signed: bool) -> Node:
        """Return a value as a type of so many bits holds it."""
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        if low <= node.low and node.high <= high:
            return node
        if node.op == "const":
            return self.const(convert(node.low, bits, signed))
        return self._node("convert", (node,), (bits, signed), low, high)

    def make(self, op: str, *args: Node) -> Node:
        """Return an operation, simplified by the ranges of its arguments."""
        if all(a.op == "const" for a in args):
            return self.const(FUNCTIONS[op](*(a.low for a in args)))
        simple = self._simple(op, args)
        if simple is not None:
            return simple
        low, high = _range(op, args)
        if low == high and not any(a.unknown for a in args):
            return self.const(low)
        return self._node(op, args, None, low, high)

    def _simple(self, op: str, args: tuple[Node, ...]) -> Node | None:
        a, b = args[0], args[-1]
        if op == "select":
            return None if a.constant is None else args[1] if a.constant else args[2]
        if op == "not":
            return a.args[0] if a.op == "not" else None
        if op in ("and", "or", "mul"):
            return _absorbed(op, a, b)
        if op in ("min", "max"):
            return _extreme(op, a, b)
        if op in NEUTRAL and b.constant == NEUTRAL[op]:
            return a
        if op == "add" and a.constant == 0:
            return b
        if op in ("tdiv", "tmod") and a.low >= 0 and b.low > 0:
            return self.make("f" + op[1:], a, b)
        if op == "fmod" and b.constant is not None and a.low >= 0 and a.high < b.constant:
            return a
        return None

    def times(self, node: Node, factor: int) -> Node:
        """Return a node times a number."""
        return self.make("mul", node, self.const(factor))

    def total(self, terms: Mapping[Node, int], constant: int = 0) -> Node:
        """Return a sum of terms, each times a number."""
        result = self.const(constant)
        for term, factor in terms.items():
            result = self.make("add", result, self.times(term, factor))
        return result


def _absorbed(op: str, a: Node, b: Node) -> Node | None:
    """Return one of two arguments where the other one decides alone, or changes nothing."""
    for one, other in ((a, b), (b, a)):
        if one.constant is None or (op == "mul" and one.constant not in (0, 1)):
            continue
        return one if bool(one.constant) == (op == "or") else other
    return a if a is b and op != "mul" else None


def _extreme(op: str, a: Node, b: Node) -> Node | None:
    """Return the argument of a minimum or a maximum that it always is."""
    low, high = (a, b) if op == "min" else (b, a)
    if low.high <= high.low:
        return a
    return b if high.high <= low.low else None


def _range(op: str, args: tuple[Node, ...]) -> tuple[int, int]:
    """Return the least and the greatest value that an operation may have."""
    a, b = args[0], args[-1]
    if op in BOOLEAN:
        return _truth(op, a, b)
    if op == "select":
        return min(args[1].low, b.low), max(args[1].high, b.high)
    if op in RANGES:
        return RANGES[op](a, b)
    if op in ("fdiv", "tdiv", "fmod", "tmod") and b.low > 0:
        return RANGES_OF_DIVISIONS[op](a, b)
    if op in ("shr", "shl") and b.constant is not None:
        return FUNCTIONS[op](a.low, b.constant), FUNCTIONS[op](a.high, b.constant)
    if op == "band" and (a.low >= 0 or b.low >= 0):
        return 0, min(x.high for x in (a, b) if x.low >= 0)
    if op in ("bor", "bxor") and a.low >= 0 and b.low >= 0:
        return 0, (1 << max(a.high.bit_length(), b.high.bit_length())) - 1
    return -FAR, FAR


def _of_corners(op: Callable[[int, int], int]) -> Callable[[Node, Node], tuple[int, int]]:
    """Return the range of an operation whose extremes are at those of its arguments."""

    def found(a: Node, b: Node) -> tuple[int, int]:
        corners = [op(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        return min(corners), max(corners)

    return found


def _range_of_tdiv(a: Node, b: Node) -> tuple[int, int]:
    return -((-a.low) // b.low) if a.low < 0 else 0, a.high // b.low if a.high > 0 else 0


RANGES = {
    "add": lambda a, b: (a.low + b.low, a.high + b.high),
    "sub": lambda a, b: (a.low - b.high, a.high - b.low),
    "mul": _of_corners(operator.mul),
    "min": lambda a, b: (min(a.low, b.low), min(a.high, b.high)),
    "max": lambda a, b: (max(a.low, b.low), max(a.high, b.high)),
}
RANGES_OF_DIVISIONS = {  # for positive operands
    "fdiv": _of_corners(operator.floordiv),
    "tdiv": _range_of_tdiv,
    "fmod": lambda a, b: (0, min(b.high - 1, a.high) if a.low >= 0 else b.high - 1),
    "tmod": lambda a, b: (0 if a.low >= 0 else 1 - b.high, b.high - 1),
}
# Neutral second arguments.
NEUTRAL = {**dict.fromkeys(("add", "sub", "bor", "bxor", "shl", "shr"), 0), "fdiv": 1}


def _truth(op: str, a: Node, b: Node) -> tuple[int, int]:
    if op == "lt":
        if a.high < b.low:
            return 1, 1
        return (0, 0) if a.low >= b.high else (0, 1)
    if op == "eq" and (a.high < b.low or b.high < a.low):
        return 0, 0
    return 0, 1


def conjuncts(node: Node) -> list[Node]:
    """Return conditions that hold together where one does."""
    return [c for a in node.args for c in conjuncts(a)] if node.op == "and" else [node]


def apply(node: Node, args: Sequence[Any]) -> Any:
    """Return an operation's value for values of its arguments."""
    if node.op == "convert":
        return convert(args[0], *node.value)
    return FUNCTIONS[node.op](*args)


def evaluate(node: Node, env: Mapping[Variable, Any], memo: dict[Node, Any]) -> Any:
    """Return the value of a node without unknowns, of ints or of arrays that broadcast.

    - `env` (dict): variables to ints or int64 arrays.
    - `memo` (dict): values of nodes under this `env`; added to.
    """
    if node.op == "const":
        return node.value
    if node.op == "var":
        return env[node.value]
    found = memo.get(node)
    if found is None:
        args = [evaluate(a, env, memo) for a in node.args]
        found = apply(node, args)
        memo[node] = found
    return found
