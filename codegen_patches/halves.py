"""TIR operator that takes the upper 16 bits of a register, opaque to the compiler.

    and.b32 y, x, 0xffff0000

Written as an operation of C it would be taken out of loops and kept across them, a register
for each half: that makes kernels spill that hold a row's weights in pairs (nvcc 13.0).
"""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir

from .operators import make_known

UPPER = "tvm_hopper_upper_half"


def register() -> None:
    """Make the operator known to TVM and to its CUDA code generator, once."""
    body = """\
    unsigned int y;
    asm("and.b32 %0, %1, 0xffff0000;" : "=r"(y) : "r"(x));
    return y;"""
    make_known(UPPER, "(unsigned int x)", body, returns=("unsigned int", "uint32"))


def upper(word: Any) -> Any:
    """Build the upper 16 bits of a uint32, the lower ones zero."""
    register()
    return ir.call_op(f"tirx.{UPPER}", "uint32", word)
