"""TIR expressions to nodes: block and thread indices, loops, scalars, registers that hold integers.

A value that comes from memory, or from an operation that is not known here, is an unknown node that
names it.  Arithmetic is exact; where a type of 32 bits or less might not hold a value that goes on
to a wider type or a comparison, the conversion is in the node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, tirx

from tvm_hopper.sim.coverage.nodes import Node, Nodes
from tvm_hopper.sim.tir import dtype_of, short_name, split_lanes

_PLAIN = {"Add": "add", "Sub": "sub", "Mul": "mul"}
_LOGIC = {"And": "and", "Or": "or"}
_EXACT = {  # wrong of a value that its type cannot hold
    "FloorDiv": "fdiv",
    "FloorMod": "fmod",
    "Div": "tdiv",
    "Mod": "tmod",
    "Min": "min",
    "Max": "max",
    "BitwiseAnd": "band",
    "BitwiseOr": "bor",
    "BitwiseXor": "bxor",
    "LShift": "shl",
    "RShift": "shr",
    "LT": "lt",
    "EQ": "eq",
}
_SWAPPED = {"GT": "lt", "LE": "lt", "GE": "lt", "NE": "eq"}
_CALLS = {
    "bitwise_and": "band",
    "bitwise_or": "bor",
    "bitwise_xor": "bxor",
    "shift_left": "shl",
    "shift_right": "shr",
}
_SAME = ("likely", "tvm_thread_invariant", "reinterpret")


def integer_type(dtype: str) -> tuple[int, bool] | None:
    """Return bits and signedness of an integer type; None for other types."""
    scalar, _ = split_lanes(dtype)
    if scalar == "bool":
        return 1, False
    for name, signed in (("uint", False), ("int", True)):
        if scalar.startswith(name) and scalar[len(name) :].isdigit():
            return int(scalar[len(name) :]), signed
    return None


class Expressions:
    """Translates integer expressions of one function into nodes.

    - `values` (dict): the node of each variable.
    - `registers` (dict): nodes of registers with known values, by (buffer, index).
    - `lane`, `thread` (Node): number of the thread in its warp and in its block.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.values: dict[Any, Node] = {}
        self.registers: dict[tuple[Any, int], Node] = {}
        self.lane = self.thread = nodes.zero

    def node(self, expr: Any, element: Node | None = None) -> Node:
        """Return the node of an expression; of one element of it, if it is a vector."""
        if isinstance(expr, int):
            return self.nodes.const(expr)
        kind = type(expr).__name__
        if kind in _PLAIN:
            return self._binary(_PLAIN[kind], expr, element)
        if kind in _LOGIC:
            parts = (self.node(expr.a, element), self.node(expr.b, element))
            return self.nodes.make(_LOGIC[kind], *parts)
        if kind in _EXACT or kind in _SWAPPED:
            return self._compared(kind, expr, element)
        method: Callable[..., Node] | None = getattr(self, f"_{kind.lower()}", None)
        if method is None:
            return self._unknown(expr)
        return method(expr, element)

    def _unknown(self, expr: Any) -> Node:
        return self.nodes.unknown(str(expr))

    def _held(self, expr: Any, element: Node | None) -> Node:
        """Return an operand as its type holds it."""
        node = self.node(expr, element)
        kind = integer_type(dtype_of(expr))
        return self.nodes.convert(node, *kind) if kind is not None else node

    def _binary(self, op: str, expr: Any, element: Node | None) -> Node:
        node = self.nodes.make(op, self.node(expr.a, element), self.node(expr.b, element))
        kind = integer_type(dtype_of(expr))
        if kind is None:
            return self._unknown(expr)
        return self.nodes.convert(node, *kind) if not kind[1] else node

    def _compared(self, kind: str, expr: Any, element: Node | None) -> Node:
        if integer_type(dtype_of(expr.a)) is None:
            return self._unknown(expr)
        a, b = self._held(expr.a, element), self._held(expr.b, element)
        if kind in _EXACT:
            return self.nodes.make(_EXACT[kind], a, b)
        op = _SWAPPED[kind]
        if kind == "GT":
            return self.nodes.make(op, b, a)
        swapped = (b, a) if kind == "LE" else (a, b)
        return self.nodes.make("not", self.nodes.make(op, *swapped))

    def _intimm(self, expr: Any, _: Node | None) -> Node:
        return self.nodes.const(int(expr.value))

    def _var(self, expr: Any, _: Node | None) -> Node:
        found = self.values.get(expr)
        return self.nodes.unknown(f"{expr.name}") if found is None else found

    def _not(self, expr: Any, element: Node | None) -> Node:
        return self.nodes.make("not", self.node(expr.a, element))

    def _cast(self, expr: Any, element: Node | None) -> Node:
        kind = integer_type(dtype_of(expr))
        if kind is None or integer_type(dtype_of(expr.value)) is None:
            return self._unknown(expr)
        node = self._held(expr.value, element)
        if kind == (1, False):
            same = self.nodes.make("eq", node, self.nodes.zero)
            return self.nodes.make("not", same)
        return self.nodes.convert(node, *kind)

    def _choose(self, parts: Any, element: Node | None) -> Node:
        return self.nodes.make("select", *(self.node(part, element) for part in parts))

    def _select(self, expr: Any, element: Node | None) -> Node:
        return self._choose((expr.condition, expr.true_value, expr.false_value), element)

    def _let(self, expr: Any, element: Node | None) -> Node:
        self.values[expr.var] = self.node(expr.value, element)
        return self.node(expr.body, element)

    def _ramp(self, expr: Any, element: Node | None) -> Node:
        if element is None:
            return self._unknown(expr)
        step = self.nodes.make("mul", self.node(expr.stride), element)
        return self.nodes.make("add", self.node(expr.base), step)

    def _broadcast(self, expr: Any, _: Node | None) -> Node:
        return self.node(expr.value)

    def _tensorload(self, expr: Any, element: Node | None) -> Node:
        if len(expr.indices) == 1:
            index = self.node(expr.indices[0], element).constant
            if index is not None and (expr.source, index) in self.registers:
                return self.registers[expr.source, index]
        return self.nodes.unknown(f"the value of {_shown(expr)}")

    def _call(self, expr: Any, element: Node | None) -> Node:
        name, args = short_name(expr), expr.args
        if name in _CALLS:
            parts = [self._held(arg, element) for arg in args[:2]]
            return self.nodes.make(_CALLS[name], *parts)
        if name in _SAME and integer_type(dtype_of(args[0])) is not None:
            node, kind = self._held(args[0], element), integer_type(dtype_of(expr))
            return self._unknown(expr) if kind is None else self.nodes.convert(node, *kind)
        if name == "if_then_else":
            return self._choose(args[:3], element)
        if name == "cuda.elect_sync":
            return self.nodes.make("eq", self.lane, self.nodes.zero)
        if name == "cuda.thread_rank":
            return self.thread
        if name == "large_uint_imm":
            low, high = (int(arg.value) for arg in args)
            return self.nodes.const(high << 32 | low)
        return self._unknown(expr)


def _shown(load: Any) -> str:
    return str(load) if isinstance(load, (ir.TensorLoad, tirx.Var)) else "memory"
