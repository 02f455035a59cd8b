"""TIR operator that pins a register: the compiler moves no use before it and no write after it.

    asm volatile("" : "+f"(reg) :: "memory")

`wgmma.wait_group` names no register, so the CUDA compiler may read an accumulator before it,
and ptxas serialises (C7514). Nor does `wgmma.fence`: what sets an accumulator may come after it
(C7519). Upstream's `cuda.wgmma_noop_barrier` takes the register by value: the copy is held, and not
the register (apache-tvm 0.27). To be dropped when it takes a reference.

A hold is no instruction and binds the CUDA compiler alone. Where no loop ends after the wait,
ptxas itself moves conversions of an accumulator to float16 before it (C7514). Hence

    @never exit

Measured with nvcc 13.0: a conditional brkpt does as well, and so do trap and nanosleep, which grew
a kernel of one iteration by 70%. Another wait, wgmma.fence, bar.sync, bar.warp.sync, an elected
mbarrier.arrive, an empty branch or `mov.b32` of each register do not; `add.f32 reg, reg, -0.0`
does, for an instruction a register.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import DTYPES

from .operators import make_known

NAME = "tvm_hopper_hold"
VALUE = "tvm_hopper_hold_value"  # an integer, by value: computed once, for all uses
FENCE = "tvm_hopper_code_fence"
# no thread has that number, which the text of an assembly statement hides from the CUDA compiler
_NEVER = """\
    asm volatile("{\\n"
                 "  .reg .pred never;\\n"
                 "  setp.eq.u32 never, %0, 0xffffffff;\\n"
                 "  @never exit;\\n"
                 "}" :: "r"(threadIdx.x) : "memory");"""


def register() -> None:
    """Make the operators known to TVM and to its CUDA code generator, once."""
    for dtype in DTYPES.values():
        if not dtype.asm_letter:
            continue
        make_known(
            f"{NAME}_{dtype.name}",
            f"({dtype.c_type}& reg)",
            f'    asm volatile("" : "+{dtype.asm_letter}"(reg) :: "memory");',
        )
    make_known(VALUE, "(int value)", '    asm volatile("" :: "r"(value));')
    make_known(FENCE, "()", _NEVER)


def hold(register_load: Any) -> Any:
    """Build the operator for one register.

    - `register_load` (TensorLoad): an element of a local buffer of float32, int32 or uint32, with a
      constant index once unrolled.
    """
    register()
    return ir.call_op(f"tirx.{NAME}_{ir.dtype_of(register_load)}", "void", register_load)


def hold_all(registers: ir.Var) -> ir.Stmt:
    """Build a loop over the operator for each register of a local buffer."""
    (length,) = (int(extent) for extent in registers.shape)
    return ir.make_loop("i", length, lambda i: hold(tirx.BufferLoad(registers, [i])), unroll=True)


def hold_value(value: Any) -> ir.Stmt:
    """Build a statement at which an integer is computed.

    What divides is not moved out of a loop by the CUDA compiler: the divisor might be 0, and the
    loop run no iteration. Computed before the loop for this, it is not computed in it again.
    """
    register()
    return tirx.Evaluate(ir.call_op(f"tirx.{VALUE}", "void", value))


def fence_code() -> Any:
    """Build the operator that ptxas moves nothing over: an exit that no thread takes."""
    register()
    return ir.call_op(f"tirx.{FENCE}", "void")
