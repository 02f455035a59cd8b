"""Updates in place: stores that combine an element with what it was.

C[i] = C[i] + tile[i]                Update("add", tile[i])
C[i] = T.max(tile[i], C[i])          Update("max", tile[i])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir

_NODES: dict[type, str] = {
    tirx.Add: "add",
    tirx.Min: "min",
    tirx.Max: "max",
    tirx.BitwiseAnd: "and",
    tirx.BitwiseOr: "or",
    tirx.BitwiseXor: "xor",
}
_BY_NAME = {operation: node for node, operation in _NODES.items()}


@dataclass(frozen=True)
class Update:
    """An operation, by its name in PTX, and the value that it combines an element with."""

    operation: str
    value: Any


def find_update(store: Any) -> Update | None:
    """Split a store that combines the element that it stores with one other value."""
    if not isinstance(store, ir.BufferStore):
        return None
    operation = _NODES.get(type(store.value))
    if operation is None:
        return None
    sides = store.value.a, store.value.b
    for old, value in (sides, sides[::-1]):
        if is_element(old, store) and not ir.uses(value, store.buffer):
            return Update(operation, value)
    return None


def combine(operation: str, old: Any, value: Any) -> Any:
    """Return what an operation makes of an element and of what it is combined with."""
    return _BY_NAME[operation](old, value)


def moved_value(store: ir.BufferStore) -> Any:
    """Return what a store moves to its place: its value, or what an update combines it with."""
    update = find_update(store)
    return store.value if update is None else update.value


def is_element(value: Any, store: ir.BufferStore) -> bool:
    """Tell the element that a statement stores to."""
    return (
        isinstance(value, ir.TensorLoad)
        and value.source.same_as(store.buffer)
        and all(map(tvm_ffi.structural_equal, value.indices, store.indices))
    )
