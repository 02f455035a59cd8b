"""Overlays: pairs of shared arrays that may use the same bytes, as an IR statement.

    overlay(&ring[0, 0, 0, 0], &staging[0, 0])

A statement, so that whoever gives arrays other shapes or names moves it along.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.effects import find_effects
from tvm_hopper.requests.keys import OVERLAY

Overlay = tuple[ir.Var, ir.Var]


def make_overlay(first: ir.Var, second: ir.Var) -> Any:
    """Build the statement that lets two shared arrays lie in the same bytes."""
    starts = [
        tirx.address_of(tirx.BufferLoad(x, [tirx.IntImm("int32", 0)] * len(x.shape)))
        for x in (first, second)
    ]
    return tirx.call_extern("int32", OVERLAY, *starts)


def parse_overlay(node: Any) -> Overlay | None:
    """Return the arrays that a statement, or its call, is about, if it is such a one."""
    call = node.value if isinstance(node, ir.Evaluate) else node
    if not isinstance(call, ir.Call) or getattr(call.op, "name", "") != "tirx.call_extern":
        return None
    if str(getattr(call.args[0], "value", "")) != OVERLAY:
        return None
    first, second = (find_effects(x)[0].buffer for x in call.args[1:])
    return first, second


def find_overlays(root: Any) -> list[Overlay]:
    """Return the pairs of arrays below `root` that may lie in the same bytes."""
    pairs = [parse_overlay(call) for call in ir.find_all(root, ir.Call)]
    return [pair for pair in pairs if pair is not None]
