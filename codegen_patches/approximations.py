"""TIR operators for the chip's approximations of 2^x, 1/x and tanh x.

    ex2.approx.ftz.f32     2 ulp (PTX ISA 9.1, 9.7.3.21); subnormal numbers are taken for zero
    rcp.approx.ftz.f32     1 ulp (9.7.3.13); so are they here
    rcp.approx.f32         1 ulp, also of subnormal numbers
    tanh.approx.f32        2^-11 of the value (9.7.3.22)

1/x of numbers from one on has a second form, by multiply-adds: tensor cores wait for what is
after a product, and an SM has 16 of these functions a cycle, of multiply-adds 128. A straight line
through the bits is 5% off, r (1 + e + e^2) with e = 1 - x r is 2^-13 off, a step of Newton's does
the rest; from 2^125 on it is zero, so that it is zero times the largest number, too. Alternating
with the chip's, by what the compiler knows of a column, both units work.

CUDA's `exp2f` and `1 / x` are the first two and what makes them right at both ends of the range:
three instructions and nine, one of them a call.  TVM's own words for them are statements that name
the register of the result (apache-tvm 0.27); what is in an expression needs an operator.
"""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir

from .operators import make_known

EX2 = "tvm_hopper_ex2_ftz"
RCP = "tvm_hopper_rcp_ftz"
WHOLE_RANGE_RCP = "tvm_hopper_rcp_approx"
TANH = "tvm_hopper_tanh_approx"
IN_TURNS = "tvm_hopper_rcp_in_turns"
DIVIDE = "tvm_hopper_divide_by"
_INSTRUCTIONS = {
    EX2: "ex2.approx.ftz.f32",
    RCP: "rcp.approx.ftz.f32",
    WHOLE_RANGE_RCP: "rcp.approx.f32",
    TANH: "tanh.approx.f32",
}
TEXTS = {
    name: (
        "(float x)",
        f"""\
    float y;
    asm("{instruction} %0, %1;" : "=f"(y) : "f"(x));
    return y;""",
    )
    for name, instruction in _INSTRUCTIONS.items()
}
TEXTS[IN_TURNS] = (
    "(float x, bool is_odd)",
    """\
    float y;
    if (is_odd) {
      y = __int_as_float(0x7EF3126E - __float_as_int(x));
      float e = fmaf(-x, y, 1.0f);
      y = fmaf(y, fmaf(e, e, e), y);
      y = fmaf(y, fmaf(-x, y, 1.0f), y);
      return x >= 0x1p125f ? 0.0f : y;
    }
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;""",
)
# A product has two roundings; what the remainder adds leaves one, but for quotients that are within
# 2^-46 of the middle between two numbers. Infinite ones, and those by zero, are products.
TEXTS[DIVIDE] = (
    "(float x, float divisor, float inverse)",
    """\
    float q = x * inverse;
    float y = fmaf(fmaf(-q, divisor, x), inverse, q);
    return y == y ? y : q;""",
)


def register() -> None:
    """Make the operators known to TVM and to its CUDA code generator, once."""
    for name, (signature, body) in TEXTS.items():
        make_known(name, signature, body, returns=("float", "float32"))


def power_of_two(x: Any) -> Any:
    """Build 2^x of a float32."""
    register()
    return ir.call_op(f"tirx.{EX2}", "float32", x)


def reciprocal(x: Any) -> Any:
    """Build 1/x of a float32: zero beyond 2^126."""
    register()
    return ir.call_op(f"tirx.{RCP}", "float32", x)


def whole_range_reciprocal(x: Any) -> Any:
    """Build 1/x of a float32; subnormal results are kept."""
    register()
    return ir.call_op(f"tirx.{WHOLE_RANGE_RCP}", "float32", x)


def reciprocal_in_turns(x: Any, is_odd: Any) -> Any:
    """Build 1/x of a float32 x >= 1: even iterations by the chip, odd ones by sums."""
    register()
    return ir.call_op(f"tirx.{IN_TURNS}", "float32", x, is_odd)


def divide(x: Any, divisor: Any, inverse: Any) -> Any:
    """Build x / divisor of float32 by the divisor's inverse, rounded as a division is."""
    register()
    return ir.call_op(f"tirx.{DIVIDE}", "float32", x, divisor, inverse)


def tanh(x: Any) -> Any:
    """Build the hyperbolic tangent of a float32, to 11 bits."""
    register()
    return ir.call_op(f"tirx.{TANH}", "float32", x)
