"""Compute with floats in types that CUDA has functions for, and in few instructions.

    quotients by a row's value become products       hoist_row_reciprocals.py
    16 bits become float32 where CUDA lacks them     widen_narrow_floats.py
    float32 functions get shorter forms              approximate_functions.py

Each of the three says what it may change of a result; none changes what is stored where.

Before: elements are dealt out to threads, stores are plain.  After: the same stores.
"""

from __future__ import annotations

from tvm_hopper.transforms.kernel_pass import function_pass

from .approximate_functions import approximate_functions
from .hoist_row_reciprocals import hoist_row_reciprocals
from .widen_narrow_floats import widen_narrow_floats

LowerFloatMath = function_pass(
    "LowerFloatMath", hoist_row_reciprocals, widen_narrow_floats, approximate_functions
)
