"""The chip's own 2^x, 1/x and tanh x as operators of TIR.

    ex2.approx.ftz.f32     2 ulp (PTX ISA 9.1, 9.7.3.21); subnormal numbers are taken for zero
    rcp.approx.ftz.f32     1 ulp (9.7.3.13); so are they here
    tanh.approx.f32        2^-11 of the value (9.7.3.22)

CUDA's `exp2f` and `1 / x` are the first two and what makes them right at both ends of the range:
three instructions and nine, one of them a call.  TVM's own words for them are statements that name
the register of the result (apache-tvm 0.27); what stands in an expression needs an operator.
"""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir

from .operators import make_known

EX2 = "tvm_hopper_ex2_ftz"
RCP = "tvm_hopper_rcp_ftz"
TANH = "tvm_hopper_tanh_approx"
_INSTRUCTIONS = {EX2: "ex2.approx.ftz.f32", RCP: "rcp.approx.ftz.f32", TANH: "tanh.approx.f32"}


def register() -> None:
    """Make the operators known to TVM and to its CUDA code generator, once."""
    for name, instruction in _INSTRUCTIONS.items():
        body = f"""\
    float y;
    asm("{instruction} %0, %1;" : "=f"(y) : "f"(x));
    return y;"""
        make_known(name, "(float x)", body, returns=("float", "float32"))


def power_of_two(x: Any) -> Any:
    """Build 2^x of a float32."""
    register()
    return ir.call_op(f"tirx.{EX2}", "float32", x)


def reciprocal(x: Any) -> Any:
    """Build 1/x of a float32: zero beyond 2^126."""
    register()
    return ir.call_op(f"tirx.{RCP}", "float32", x)


def tanh(x: Any) -> Any:
    """Build the hyperbolic tangent of a float32, to 11 bits."""
    register()
    return ir.call_op(f"tirx.{TANH}", "float32", x)
