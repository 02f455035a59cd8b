"""Ask at run time whether a call comes with an allocator for workspaces."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from .types import Call

# tvm/ffi/extra/c_env_api.h; PyTorch's, where a call has tensors of PyTorch's
ALLOCATOR = "TVMFFIEnvGetDLPackManagedTensorAllocator"


def has_allocator() -> Any:
    """Build the condition of a host function that its caller has an allocator."""
    return tirx.Not(tirx.isnullptr(tirx.call_extern("handle", ALLOCATOR)))


def answers_for_allocator(expr: Any) -> bool | None:
    """Tell what a condition's truth says of the caller's allocator; None: it asks another thing."""
    if isinstance(expr, tirx.Not):
        other = answers_for_allocator(expr.a)
        return None if other is None else not other
    if not isinstance(expr, Call) or not str(getattr(expr.op, "name", "")).endswith("isnullptr"):
        return None
    (pointer,) = expr.args
    is_call = isinstance(pointer, Call) and str(pointer.op.name).endswith("call_extern")
    return False if is_call and getattr(pointer.args[0], "value", None) == ALLOCATOR else None
