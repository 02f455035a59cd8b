"""Early exits of statements."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvm_hopper.sim.tir import short_name

_CALLS = {
    "ret": "return",
    "thread_return": "return",
    "break_loop": "break",
    "continue_loop": "continue",
}
_INNER = ("body", "then_case", "else_case")


def ways_to_leave(root: Any) -> set[str]:
    """Return the ways out of a statement: "return", and "break" and "continue" of a loop around it.

    Those of loops inside of it lead nowhere else.
    """
    if isinstance(root, tirx.SeqStmt):
        return set().union(*(ways_to_leave(node) for node in root.seq))
    if isinstance(root, tirx.Evaluate) and isinstance(root.value, ir.Call):
        word = _CALLS.get(short_name(root.value))
        return {word} if word else set()
    if isinstance(root, (tirx.Return, tirx.Break, tirx.Continue)):
        return {type(root).__name__.lower()}
    inner = [getattr(root, name, None) for name in _INNER]
    found = set().union(*(ways_to_leave(node) for node in inner if node is not None))
    return found & {"return"} if isinstance(root, (tirx.For, tirx.While)) else found
