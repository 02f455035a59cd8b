"""Statements after which a thread is not followed: early exits, and calls with unknown bodies.

A function known by name only, or CUDA text, may arrive, wait, fence or exchange values. The steps
of a thread after it are therefore not followed, and may release other agents: a skeleton with an
agent at such a call is incomplete, not stuck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvm_hopper.sim.tir import nodes_in, short_name
from tvm_hopper.sim.translate.device_math import plain_name

_BY_NAME = ("call_extern", "cuda.func_call")
# Expressions that a statement evaluates itself, by its type; inner statements have their own entry.
_OWN = {
    "Evaluate": ("value",),
    "BufferStore": ("value", "indices"),
    "Bind": ("value",),
    "IfThenElse": ("condition",),
    "For": ("min", "extent"),
    "While": ("condition",),
}


def any_opaque(body: Any) -> bool:
    """Return whether a function calls functions with unknown bodies; most do not."""
    return next(_unknown(body), None) is not None


def opaque_call(stmt: Any) -> str | None:
    """Return the name of a function that a statement calls and nothing knows, if there is one.

    A pure call has no effect; the functions of CUDA's math headers are known.
    """
    parts = (getattr(stmt, part) for part in _OWN.get(type(stmt).__name__, ()))
    return next((name for part in parts for name in _unknown(part)), None)


def _unknown(root: Any) -> Iterator[str]:
    calls = nodes_in(root, ir.Call)
    for call in calls:
        if short_name(call) in _BY_NAME:
            name = str(call.args[0].value)
            if plain_name(name) is None:
                yield name


def opaque_step(node: Any, name: str) -> Callable[[Any, np.ndarray], None]:
    """Return a function that notes a call in a trace, for the threads of a mask (threads,)."""

    def run(trace: Any, mask: np.ndarray) -> None:
        trace.add("opaque", mask, (name,), node)

    return run


_CALLS = {
    "ret": "return",
    "thread_return": "return",
    "break_loop": "break",
    "continue_loop": "continue",
}
_INNER = ("body", "then_case", "else_case")


def ways_to_leave(root: Any) -> set[str]:
    """Return the ways out of a statement: "return", and "break" and "continue" of a loop around it.

    Breaks and continues of inner loops do not leave it.
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
