"""Under which conditions of the host a kernel is launched, and what they say of its extents.

if m <= 256:
    if m > 64:
        for bx in thread_binding(...)                        64 < m, m <= 256
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import sym, tirx

from tvm_hopper import ir

_OPPOSITE = {tirx.LT: tirx.GE, tirx.GE: tirx.LT, tirx.LE: tirx.GT, tirx.GT: tirx.LE}


@dataclass(frozen=True)
class HostCondition:
    """A condition around a launch, and whether it has to hold or not to hold."""

    condition: Any
    holds: bool

    @property
    def term(self) -> Any:
        """Return an expression that is true wherever the kernel runs."""
        if self.holds:
            return self.condition
        opposite = _OPPOSITE.get(type(self.condition))
        if opposite is None:
            return tirx.Not(self.condition)
        return opposite(self.condition.a, self.condition.b)


def conditions_around(root: Any, node: Any) -> tuple[HostCondition, ...]:
    """Return the conditions of the statements around a node of a function, outermost first.

    Parameters
    ----------
    root : Stmt
        Where to look.
    node : Stmt or Expr
        A kernel, or what names one, found by identity.
    """
    found: list[HostCondition] = []
    while True:
        branches = _outermost_branches(root)
        branch = next((x for x in branches if ir.uses_node(x, node)), None)
        if branch is None or branch.same_as(node) or ir.uses_node(branch.condition, node):
            return tuple(found)
        holds = ir.uses_node(branch.then_case, node)
        found.append(HostCondition(branch.condition, holds))
        root = branch.then_case if holds else branch.else_case


def _outermost_branches(root: Any) -> list[Any]:
    found: list[Any] = []

    def visit(branch: ir.IfThenElse) -> Any:
        found.append(branch)
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(root, [(ir.IfThenElse, visit)], order="pre")
    return found


@contextlib.contextmanager
def known_at(conditions: Sequence[HostCondition]) -> Iterator[sym.Analyzer]:
    """Give an analyzer that knows some conditions."""
    analyzer = sym.Analyzer()
    with contextlib.ExitStack() as scopes:
        for each in conditions:
            scopes.enter_context(analyzer.constraint_scope(each.term))
        yield analyzer


def most(extent: Any, analyzer: sym.Analyzer) -> int | None:
    """Return the largest value that an extent can have, None if nothing of it is known."""
    static = ir.static_int(extent)
    if static is not None:
        return static
    bound = int(analyzer.const_int_bound(extent).max_value)
    return None if bound >= (1 << 31) - 1 else bound  # the type's own limit, or TVM's infinity


def as_text(conditions: Sequence[HostCondition]) -> str:
    """Write conditions for people: ranges of integers together, others one by one."""
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    others: list[str] = []
    for each in conditions:
        allocator = ir.answers_for_allocator(each.condition)
        if allocator is not None:
            has = allocator == each.holds
            others.append("calls " + ("with" if has else "without") + " an allocator of their own")
            continue
        term = each.term
        if isinstance(term, tirx.EQ) and (only := ir.static_int(term.b)) is not None:
            low[_plain(term.a)] = high[_plain(term.a)] = only
            continue
        if type(term) not in _OPPOSITE:
            others.append(_plain(term))
            continue
        ascends = isinstance(term, (tirx.LT, tirx.LE))
        below, above = (term.a, term.b) if ascends else (term.b, term.a)
        step = int(isinstance(term, (tirx.LT, tirx.GT)))
        least, largest = ir.static_int(below), ir.static_int(above)
        if least is not None:
            name = _plain(above)
            low[name] = max(least + step, low.get(name, least + step))
        elif largest is not None:
            name = _plain(below)
            high[name] = min(largest - step, high.get(name, largest - step))
        else:
            others.append(_plain(term))
    ranges = [_range(name, low.get(name), high.get(name)) for name in {**low, **high}]
    return " and ".join([*ranges, *others])


def _range(name: str, low: int | None, high: int | None) -> str:
    if low is None or high is None:
        return f"{name} <= {high}" if low is None else f"{name} >= {low}"
    return f"{name} == {low}" if low == high else f"{low} <= {name} <= {high}"


def _plain(expr: Any) -> str:
    """Print an expression without the types of its constants."""
    return re.sub(r"T\.int\d+\((-?\d+)\)", r"\1", str(expr))
