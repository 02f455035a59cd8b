"""Calls with unknown bodies: C functions by name, and CUDA text.

Such a body may arrive, wait, fence or exchange values. What a thread does after it is therefore
not followed, and what others wait for then may come from it: a skeleton in which an agent is at
such a call is incomplete, not stuck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tvm import ir

from tvm_hopper.sim.tir import nodes_in, short_name
from tvm_hopper.sim.translate.device_math import plain_name

_BY_NAME = ("call_extern", "cuda.func_call")
# What a statement evaluates itself, by its type; statements inside of it are requested their own.
_OWN = {
    "Evaluate": ("value",),
    "BufferStore": ("value", "indices"),
    "Bind": ("value",),
    "IfThenElse": ("condition",),
    "For": ("min", "extent"),
    "While": ("condition",),
}


def any_opaque(body: Any) -> bool:
    """Tell whether a function calls what nothing knows; most call nothing of the kind."""
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
    """Return what notes a call in a trace, for the threads of a mask (threads,)."""

    def run(trace: Any, mask: np.ndarray) -> None:
        trace.add("opaque", mask, (name,), node)

    return run
