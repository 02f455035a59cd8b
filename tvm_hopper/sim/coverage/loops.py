"""Classify loops: executed by the CTA (the tile loop) or by its threads.

A loop whose extent depends on the block index is the CTA's. So is one of constant extent whose
variable meets a block index under a division, a remainder or the like: as the threads' it would
make a key of every CTA.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvm_hopper.sim.coverage.accesses import GlobalAccess, PathStep
from tvm_hopper.sim.coverage.nodes import INNER, OUTER, Node, Variable, conjuncts

INT32_MAX = (1 << 31) - 1
MAX_MIXED = 1 << 20  # points that loops of constant extent may make

_MIXING = ("fdiv", "fmod", "tdiv", "tmod", "min", "max", "band", "bor", "bxor", "shr", "mul")


def assign_roles(accesses: Sequence[GlobalAccess], num_ctas: int) -> None:
    """Decide the role of each loop's variable."""
    nodes = [n for access in accesses for n in _roots(access)]
    mixed = {node.uses for node in _below(nodes) if node.op in _MIXING}
    points = num_ctas
    for step, variable in {s: s.variable for a in accesses for s in a.path}.items():
        if variable is None or step.node.unknown:
            continue
        others = [v for v in step.node.uses if v is not variable]
        if any(v.role == INNER for v in others):
            continue
        if others or step.kind == "while":
            variable.role = OUTER
        elif any(variable in uses and _has_outer(uses) for uses in mixed):
            size = variable.high - variable.low + 1
            if points * size <= MAX_MIXED:
                points *= size
                variable.role = OUTER


def _has_outer(uses: Iterable[Variable]) -> bool:
    return any(v.role == OUTER for v in uses)


def _roots(access: GlobalAccess) -> list[Node]:
    return [*access.offsets, access.width, *(step.node for step in access.path)]


def _below(roots: Iterable[Node]) -> set[Node]:
    found: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.args)
    return found


def iteration_limit(condition: Node, variable: Variable) -> int | None:
    """Return how many iterations run at most while `a*i + b < c` holds for the variable i."""
    most = None
    for part in conjuncts(condition):
        if part.op != "lt":
            continue
        slope = _slope(part.args[0], variable)
        if slope and slope > 0 and _slope(part.args[1], variable) == 0:
            low, end = _at_zero(part.args[0], variable), part.args[1].high
            if end + slope <= INT32_MAX:  # the counter does not wrap before the loop ends
                iterations = max((end - 1 - low) // slope + 1, 0)
                most = iterations if most is None else min(most, iterations)
    return most


def monotone(step: PathStep) -> bool:
    """Return whether a `while` loop's condition, once false, stays false."""
    variable = step.variable
    assert variable is not None
    for part in conjuncts(step.node):
        if variable not in part.uses:
            continue
        if part.op != "lt":
            return False
        left, right = (_slope(a, variable) for a in part.args)
        if left is None or right is None or left < right:
            return False
    return True


def _slope(node: Node, variable: Variable) -> int | None:
    """Return by how much an expression grows with a variable; None if not by a constant."""
    if variable not in node.uses:
        return 0
    if node.op == "var":
        return 1
    if node.op in ("add", "sub"):
        a, b = (_slope(x, variable) for x in node.args)
        return None if a is None or b is None else a + b if node.op == "add" else a - b
    if node.op == "convert":
        return _slope(node.args[0], variable)
    if node.op == "mul":
        for one, other in (node.args, node.args[::-1]):
            factor = other.constant
            if factor is not None:
                part = _slope(one, variable)
                return None if part is None else part * factor
    return None


def _at_zero(node: Node, variable: Variable) -> int:
    """Return the least value of an expression where a variable that it grows with is 0."""
    if variable not in node.uses:
        return node.low
    if node.op == "var":
        return 0
    if node.op == "convert":
        return _at_zero(node.args[0], variable)
    a, b = node.args
    if node.op == "add":
        return _at_zero(a, variable) + _at_zero(b, variable)
    if node.op == "sub":
        return _at_zero(a, variable) - b.high
    return _at_zero(a if b.constant is not None else b, variable) * (b.constant or a.constant or 1)
