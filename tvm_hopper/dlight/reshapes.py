"""Recognise functions that only give a tensor another shape: Relax makes them views."""

from __future__ import annotations

from math import prod

from tvm import relax, tirx

from tvm_hopper import ir

MOST_NUMBERED = (1 << 31) - 1  # elements that TVM's analysis can number


def is_reshape(func: tirx.PrimFunc) -> bool:
    """Tell a function that only gives a tensor another shape.

    TVM's analysis numbers elements in 32 bits and fails on larger tensors: those count as copies.
    """
    sizes = [ir.static_int(prod(x.ty.shape)) for x in func.params if tirx.is_buffer_var(x)]
    if any(size is not None and size > MOST_NUMBERED for size in sizes):
        return False
    return bool(relax.analysis.has_reshape_pattern(func))
