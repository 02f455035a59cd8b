"""Hold a register where it is: what is computed from it stays behind, what sets it stays in front.

    asm volatile("" : "+f"(reg) :: "memory")

`wgmma.wait_group` names no register, so the CUDA compiler may read an accumulator in front of it,
and ptxas serialises (C7514). Upstream's `cuda.wgmma_noop_barrier` takes the register by value: the
copy is held, and not the register (apache-tvm 0.27). To be dropped when it takes a reference.
"""

from __future__ import annotations

from typing import Any

from tvm import ir as tvm_ir
from tvm import tirx
from tvm.backend.cuda.codegen.schema import device_intrinsic
from tvm.tirx.expr import CallEffectKind

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import DTYPES

NAME = "tvm_hopper_hold"


def register() -> None:
    """Make the operators known to TVM and to its CUDA code generator, once."""
    for dtype in DTYPES.values():
        name = f"{NAME}_{dtype.name}"
        if not dtype.asm_letter or name in _registered:
            continue
        _registered.add(name)
        tvm_ir.register_op_attr(f"tirx.{name}", "TCallEffectKind", CallEffectKind.Opaque.value)
        device_intrinsic(
            name,
            c_signature=f"({dtype.c_type}& reg)",
            body=f'    asm volatile("" : "+{dtype.asm_letter}"(reg) :: "memory");',
        )


_registered: set[str] = set()


def hold(register_load: Any) -> Any:
    """Build the operator for one register.

    Parameters
    ----------
    register_load : TensorLoad
        An element of a local buffer of float32, int32 or uint32, with a constant index once
        unrolled.
    """
    register()
    return ir.call_op(f"tirx.{NAME}_{ir.dtype_of(register_load)}", "void", register_load)


def hold_all(registers: ir.Var) -> ir.Stmt:
    """Build a loop over the operator for each register of a local buffer."""
    (length,) = (int(extent) for extent in registers.shape)
    return ir.make_loop("i", length, lambda i: hold(tirx.BufferLoad(registers, [i])), unroll=True)
