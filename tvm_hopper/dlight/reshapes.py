"""Recognise functions that only give a tensor another shape: Relax makes them views."""

from __future__ import annotations

from math import prod

from tvm import relax, tirx

from tvm_hopper import ir

MOST_NUMBERED = (1 << 31) - 1  # elements that TVM's analysis can number


def is_reshape(func: tirx.PrimFunc) -> bool:
    """Tell a function that only gives a tensor another shape.

    TVM's analysis numbers elements in 32 bits and fails on larger tensors: those count as copies.
    It compares places alone, which the first rows of a tensor have in common with all of it.
    """
    sizes = [prod(x.ty.shape) for x in func.params if tirx.is_buffer_var(x)]
    if any((ir.static_int(size) or 0) > MOST_NUMBERED for size in sizes):
        return False
    is_whole = len(sizes) > 1 and ir.is_const(ir.simplify(sizes[0] - sizes[-1]), 0)
    return is_whole and bool(relax.analysis.has_reshape_pattern(func))
