"""Rewrite a role's statements as one of its warp groups sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir as tvm_ir, sym, tirx

from tvm_hopper import ir
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS


@dataclass(frozen=True)
class GroupView:
    """Statements with a thread's number split: `first + group * 128 + lane`."""

    thread: ir.Var
    first_thread: int
    group: ir.Var
    lane: ir.Var

    @classmethod
    def of(cls, thread: ir.Var, first_thread: int = 0) -> GroupView:
        """Make the variables of a view."""
        return cls(thread, first_thread, ir.Var("group", "int32"), ir.Var("lane", "int32"))

    def split(self, node: Any) -> Any:
        """Return an expression or a statement in terms of group and lane."""
        number = self.first_thread + self.group * WARP_GROUP_THREADS + self.lane
        analyzer = sym.Analyzer()
        analyzer.bind(self.lane, tvm_ir.Range(0, WARP_GROUP_THREADS))

        def divide(expr: Any, mutator: Any) -> Any:
            return analyzer.simplify(mutator.default_mutate(expr))

        node = ir.substitute(node, {self.thread: number})
        return ir.mutate(node, [(kind, divide) for kind in (tirx.FloorDiv, tirx.FloorMod)])

    def varies_in_group(self, node: Any) -> bool:
        """Tell whether threads of one warp group may disagree about an expression or statement."""
        return ir.depends_on(node, [self.thread]) and ir.depends_on(self.split(node), [self.lane])
