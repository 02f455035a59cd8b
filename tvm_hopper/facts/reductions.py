"""Bulk reductions to global memory: legal operations and element types.

Two forms (PTX ISA 9.1): 9.7.9.25.5.2 `cp.reduce.async.bulk` names the type, 9.7.9.27.2
`cp.reduce.async.bulk.tensor` takes it from the tensor map. Each element is combined by a relaxed
atomic operation at gpu scope. The tables were compared with what ptxas 13.0 takes for sm_90a
(`tests/facts/test_reductions.py`); `.inc` and `.dec`, whose operand is a bound, are left out.
"""

from __future__ import annotations

OPERATIONS = ("add", "min", "max", "and", "or", "xor")
BITWISE = ("and", "or", "xor")

_LETTERS = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "int32": "s32",
    "uint32": "u32",
    "int64": "s64",
    "uint64": "u64",
}
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("int32", "uint32", "int64", "uint64")
_HALVES = ("float16", "bfloat16")

_BULK = {
    "add": (*_INTEGERS, *_FLOATS),
    **{operation: (*_INTEGERS, *_HALVES) for operation in ("min", "max")},
    **{operation: _INTEGERS for operation in BITWISE},
}
_NO_DOUBLES = tuple(dtype for dtype in _BULK["add"] if dtype != "float64")
LEGAL: dict[str, dict[str, tuple[str, ...]]] = {
    "bulk": _BULK,
    "tma": {**_BULK, "add": _NO_DOUBLES},
}
"""For each mechanism and operation the types that it combines."""


def is_legal(mechanism: str, operation: str, dtype: str) -> bool:
    """Tell whether a mechanism combines elements of a type by an operation."""
    return dtype in LEGAL[mechanism][operation]


def bulk_suffix(operation: str, dtype: str) -> str:
    """Return how `cp.reduce.async.bulk` names an operation on a type, e.g. "add.noftz.f16".

    A sum of int64 is that of uint64: both wrap.
    """
    letters = _LETTERS[dtype]
    if operation in BITWISE:
        letters = f"b{letters[1:]}"
    elif (operation, dtype) == ("add", "int64"):
        letters = _LETTERS["uint64"]
    elif operation == "add" and dtype in _HALVES:
        letters = f"noftz.{letters}"
    return f"{operation}.{letters}"


def map_dtype(operation: str, dtype: str) -> str:
    """Return the type that a tensor map has to name for a reduction of elements of a type."""
    if dtype == "int64" and operation not in ("min", "max"):
        return "uint64"
    return dtype


def depends_on_order(operation: str, dtype: str) -> bool:
    """Tell whether results differ with the order in which elements are combined."""
    return operation == "add" and dtype in _FLOATS
