"""Check on the host, at each call, that tensors start where the kernels' accesses may.

    kernel(A_ptr): A = decl_buffer((4096,), "float16", data=A_ptr)
                   A_local[0:8] = A[threadIdx.x * 8 : threadIdx.x * 8 + 8]
    A = decl_buffer(data=tensor pointer of argument 0)
    cuTensorMapEncodeTiled(B_map, "float16", 2, B.data, ...)
    call_ffi_kernel("kernel", A.data, B_map, ...)
  ->
    assert tensor pointer of argument 0 % 16 == 0, "A: found a start address ..."
    A = decl_buffer(data=tensor pointer of argument 0)

TVM's driver call refuses a misaligned tensor without a word about which, and a misaligned access is
a fault of the whole context. The kernels are asked as they are printed: no earlier form says which
accesses are vectors (`analysis.access_widths`).

Before: kernels are split off and final.  After: each argument that a kernel of ours accesses by
more than a byte is checked once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.access_widths import access_widths
from tvm_hopper.analysis.launches import find_launches
from tvm_hopper.facts.tensor_map import ADDRESS_ALIGNMENT
from tvm_hopper.transforms.kernel_pass import function_in_module_pass
from tvm_hopper.transforms.mechanisms.tma_emit import is_encode

FOUND = "found a start address"
_DATA_ARGUMENT = 4  # of a map's encoding: name, map, type, rank, data


@dataclass(frozen=True)
class Alignment:
    """The statement by which an argument's pointer becomes known, and what has to divide it."""

    declared: Any
    num_bytes: int


def plan_asserts(func: tirx.PrimFunc, mod: Any) -> tuple[Alignment, ...]:
    """List the arguments that kernels of a packed host function access, each with its widest."""
    if not ir.is_packed(func):
        return ()
    declared = {x.buffer: x for x in ir.find_all(func.body, tirx.DeclBuffer)}
    needs: dict[Any, int] = {}

    def need(buffer: Any, num_bytes: int) -> None:
        root = declared.get(buffer)
        while root is not None and (parent := ir.pointer_of(root.data)) is not None:
            root = declared.get(parent)  # a view of an argument
        if root is not None and _is_argument(root.data):
            needs[root] = max(needs.get(root, 1), num_bytes)

    for call in ir.find_all(func.body, ir.Call, is_encode):
        address = call.args[_DATA_ARGUMENT]
        buffer = ir.pointer_of(address)
        if buffer is None:  # behind the start; by how much, LowerAsyncCopies has looked at
            buffer = next((x.source for x in ir.find_all(address, ir.TensorLoad)), None)
        need(buffer, ADDRESS_ALIGNMENT)
    kernels = {str(gv.name_hint): kernel for gv, kernel in mod.functions.items()}
    for launch in find_launches(func):
        if launch.kernel in kernels:
            for number, num_bytes in access_widths(kernels[launch.kernel]).items():
                need(ir.pointer_of(launch.args[number]), num_bytes)
    asserts = ir.find_all(func.body, tirx.AssertStmt, lambda x: FOUND in str(x.message_parts[0]))
    checked = [x.condition for x in asserts]
    return tuple(
        Alignment(x, n)
        for x, n in needs.items()
        if n > 1 and not any(ir.uses_node(condition, x.data) for condition in checked)
    )


def _is_argument(pointer: Any) -> bool:
    """Tell a pointer that is read from an argument; memory that TVM allocates is more aligned."""
    return ir.has_any(pointer, ir.Call, lambda x: x.op.name == "tirx.tvm_struct_get")


def rewrite_asserts(func: tirx.PrimFunc, plan: tuple[Alignment, ...]) -> tirx.PrimFunc:
    """Put each assert where the tensor's pointer becomes known."""
    # In front: LLVM is told there that the pointer is aligned, and drops checks after it.
    checked = {need.declared: ir.seq(_assert(need), need.declared) for need in plan}
    return func.with_body(ir.replace_nodes(func.body, tirx.DeclBuffer, checked))


def _assert(need: Alignment) -> ir.Stmt:
    address = tirx.reinterpret("uint64", need.declared.data)
    rest = tirx.bitwise_and(address, tirx.IntImm("uint64", need.num_bytes - 1))
    return ir.make_assert(
        rest.equal(tirx.IntImm("uint64", 0)),
        f"{need.declared.buffer.name}: {FOUND} that is no multiple of {need.num_bytes} bytes; "
        f"need one that is; pass a copy, or a tensor that does not start inside another",
    )


def _assert_alignment(func: tirx.PrimFunc, mod: tvm.IRModule) -> tirx.PrimFunc:
    """Assert the alignment of one host function's tensors."""
    plan = plan_asserts(func, mod)
    return rewrite_asserts(func, plan) if plan else func


AssertAlignment = function_in_module_pass("AssertAlignment", _assert_alignment)
