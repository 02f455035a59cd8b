"""Halves of registers, each by one instruction that the compiler cannot look into, or finds not.

    and.b32 y, x, 0xffff0000              the upper one, in its place
    cvt.rn.relu.bf16x2.f32 y, high, low   two numbers, zero where they are below (PTX 9.7.9.21)

Written as an operation of C the first would be taken out of loops and kept across them, a register
for each half: that makes kernels spill that hold a row's weights in pairs (nvcc 13.0).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir

from .operators import make_known

UPPER = "tvm_hopper_upper_half"
RELU_PAIR = "tvm_hopper_relu_pair"  # and the type of the halves
_PAIRS = {"float16": "f16x2", "bfloat16": "bf16x2"}


def register() -> None:
    """Make the operator known to TVM and to its CUDA code generator, once."""
    body = """\
    unsigned int y;
    asm("and.b32 %0, %1, 0xffff0000;" : "=r"(y) : "r"(x));
    return y;"""
    make_known(UPPER, "(unsigned int x)", body, returns=("unsigned int", "uint32"))
    for dtype, pair in _PAIRS.items():
        body = f"""\
    unsigned int y;
    asm("cvt.rn.relu.{pair}.f32 %0, %1, %2;"
        : "=r"(y) : "f"(__uint_as_float(high)), "f"(__uint_as_float(low)));
    return y;"""
        signature = "(unsigned int low, unsigned int high)"
        make_known(f"{RELU_PAIR}_{dtype}", signature, body, returns=("unsigned int", "uint32"))


def upper(word: Any) -> Any:
    """Build the upper 16 bits of a uint32, the lower ones zero."""
    register()
    return ir.call_op(f"tirx.{UPPER}", "uint32", word)


def relu_pair(dtype: str, low: Any, high: Any) -> Any:
    """Build a register of two rounded float32, each of them zero if it is below zero."""
    register()
    bits = [tirx.reinterpret("uint32", x) for x in (low, high)]
    return ir.call_op(f"tirx.{RELU_PAIR}_{dtype}", "uint32", *bits)
