"""Find functions of floating-point numbers, and operations that CUDA lacks for 16-bit types."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir

FUNCTIONS_OF_FLOAT = frozenset(
    f"tirx.{name}"
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan2", "atanh", "copysign", "cosh", "fmod", "hypot"),
        *("ldexp", "log1p", "nearbyint", "sinh", "tan"),
    )
)
"""Functions that CUDA has for float32 and float64 only: widen_narrow_floats.py widens others."""


def find_impossible(node: Any) -> str:
    """Say which operation in a program no kernel can compute; nothing if there is none."""
    for call in ir.find_all(node, ir.Call):
        name = str(getattr(call.op, "name", ""))
        if name in FUNCTIONS_OF_FLOAT and "float" not in ir.dtype_of(call):
            return f"{name.removeprefix('tirx.')} of {ir.dtype_of(call)}"
    rests = [x for kind in (tirx.Mod, tirx.FloorMod) for x in ir.find_all(node, kind)]
    return "a remainder of bool" if any(ir.dtype_of(x) == "bool" for x in rests) else ""
