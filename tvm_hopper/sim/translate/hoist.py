"""Arithmetic on thread indices alone: each warp does it once, not wherever it is.

for i in range(64):                              tid_1 = (threadIdx_x >> 5)
    C[(threadIdx_x >> 5) * 64 + i] = ...   ->    tid_2 = (tid_1 * 64)
                                                 for i in range(64): store(C, tid_2 + i, ...)
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvm_hopper.sim.tir import dtype_of, short_name
from tvm_hopper.sim.translate.scope import Code, Scope

_ARITHMETIC = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod),
    *(tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE),
    *(tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor, tirx.LShift, tirx.RShift),
)
_CALLS = ("bitwise_and", "bitwise_or", "bitwise_xor", "shift_right", "shift_left")


class HoistEmitter:
    """Moves expressions up to the definition of the thread indices; a part of `ExprEmitter`."""

    scope: Scope
    program: Any
    lines: list[str]

    def __init__(self) -> None:
        self.threads: set[Any] = set()  # indices that are defined
        self.hoist_at = 0  # line after their definition
        self.hoists: dict[str, tuple[str, int]] = {}  # name and line of each text

    def inline(self, node: Any) -> Code:
        """Return the text of an expression where it is."""
        raise NotImplementedError

    def of_thread(self, node: Any) -> bool:
        """Return whether an expression is integer arithmetic on thread indices and constants."""
        if not self.threads or isinstance(node, (ir.Var, tirx.IntImm)):
            return False
        leaves: list[Any] = []
        return self._arithmetic(node, leaves) and bool(leaves)

    def _arithmetic(self, node: Any, leaves: list[Any]) -> bool:
        if isinstance(node, tirx.IntImm):
            return True
        if isinstance(node, ir.Var):
            leaves.append(node)
            return node in self.threads
        if isinstance(node, tirx.Cast):
            return "float" not in dtype_of(node) and self._arithmetic(node.value, leaves)
        if isinstance(node, _ARITHMETIC):
            return self._arithmetic(node.a, leaves) and self._arithmetic(node.b, leaves)
        if isinstance(node, ir.Call) and short_name(node) in _CALLS:
            return all(self._arithmetic(arg, leaves) for arg in node.args)
        return False

    def hoisted(self, node: Any) -> str:
        """Return a name for a value that each warp computes once."""
        text, _ = self.inline(node)
        if text not in self.hoists:
            self.hoists[text] = (self.scope.name("tid"), self.hoist_at)
        return self.hoists[text][0]

    def place_hoisted(self) -> None:
        """Insert the definitions that have been requested."""
        for text, (name, line) in reversed(self.hoists.items()):
            self.lines.insert(line, f" {name} = {text}")
            self.program.line_sites.insert(line, 0)
