"""Walk the nodes of TIR, for the simulator's own questions about a kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import tvm_ffi

_walk = tvm_ffi.get_global_func("ffi.StructuralWalk")
_ORDERS = {"pre": int(tvm_ffi.WalkOrder.PREORDER), "post": int(tvm_ffi.WalkOrder.POSTORDER)}

Visit = tuple[type, Callable[[Any], Any]]  # what is called for each node of a class


@lru_cache(maxsize=256)
def _type_index(kind: type) -> int:
    return int(tvm_ffi.core.TypeSchema.from_annotation(kind).origin_type_index)


def walk_nodes(root: Any, visits: Visit | list[Visit], order: str = "post") -> Any:
    """Call what is given for a class with each node of it, children first or last.

    As `tvm_ffi.structural_walk`, which finds out again at each call what its classes are: that
    takes several times as long as the walk of an expression.
    """
    visits = visits if isinstance(visits, list) else [visits]
    return _walk(root, [(_type_index(kind), call) for kind, call in visits], [], _ORDERS[order])
