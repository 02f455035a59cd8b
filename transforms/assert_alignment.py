"""Check on the host, at each call, that tensors start where the kernel's wide accesses may.

RequireAlignment, at the hook:

    cuTensorMapEncodeTiled(A_map, "float16", 2, A.data, ...)
    kernel: for e in vectorized(2): D[..., e] = ...
  ->
    func_attr({"tvm_hopper.alignment": ["A", 16, "D", 4]})

AssertAlignment, on the packed host function:

    A = decl_buffer(data=tensor pointer of argument 0)
  ->
    assert tensor pointer of argument 0 % 16 == 0, "A: found a start address ..."
    A = decl_buffer(data=tensor pointer of argument 0)

TVM's driver call refuses a misaligned tensor without a word about which, and a misaligned vector
store is a fault of the whole context. Two passes, since stock storage legalisation fails on a
pointer turned into an integer.

Before: tensor maps and vector loops are final.  After: no alignment is left to assert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.facts.hopper import dtype_bytes
from tvm_hopper.facts.tensor_map import ADDRESS_ALIGNMENT
from tvm_hopper.keys import ALIGNMENT

ENCODE = "runtime.cuTensorMapEncodeTiled"
_DATA_ARGUMENT = 4  # of ENCODE: name, map, type, rank, data


@dataclass(frozen=True)
class Alignment:
    """One tensor and the bytes that its start must be a multiple of."""

    tensor: str
    num_bytes: int


def plan_requirements(func: tirx.PrimFunc) -> tuple[Alignment, ...]:
    """List the tensors that wide accesses touch, each with its widest."""
    needs: dict[str, int] = {}

    def need(buffer: ir.Var, num_bytes: int) -> None:
        if num_bytes > 1:
            needs[buffer.name] = max(needs.get(buffer.name, 1), num_bytes)

    for call in ir.find_all(func.body, ir.Call, _is_encode):
        buffer = ir.pointer_of(call.args[_DATA_ARGUMENT])
        if buffer is not None:
            need(buffer, ADDRESS_ALIGNMENT)
    for loop in ir.find_all(func.body, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED):
        for store in ir.find_all(
            loop, ir.BufferStore, lambda x: x.buffer.scope() in ("", "global")
        ):
            need(store.buffer, int(loop.extent) * dtype_bytes(ir.dtype_of(store.buffer)))
    return tuple(Alignment(*pair) for pair in sorted(needs.items()))


def _is_encode(call: ir.Call) -> bool:
    first = call.args[0] if len(call.args) else None
    return isinstance(first, StringImm) and first.value == ENCODE


@prim_func_pass(opt_level=0, name="tvm_hopper.RequireAlignment")
class RequireAlignment:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Record what one function's tensors need."""
        plan = plan_requirements(func)
        flat = [item for need in plan for item in (need.tensor, need.num_bytes)]
        return func.with_attr(ALIGNMENT, flat) if flat else func


def plan_asserts(func: tirx.PrimFunc) -> tuple[Alignment, ...]:
    """Read the requirements off a packed host function; nothing elsewhere."""
    if ALIGNMENT not in func.attrs or "tirx.is_entry_func" not in func.attrs:
        return ()
    flat = list(func.attrs[ALIGNMENT])
    return tuple(Alignment(str(t), int(n)) for t, n in zip(flat[::2], flat[1::2], strict=True))


def rewrite_asserts(func: tirx.PrimFunc, plan: tuple[Alignment, ...]) -> tirx.PrimFunc:
    """Put each assert where the tensor's pointer becomes known."""
    needs = {need.tensor: need for need in plan}

    def visit(declared: Any, mutator: Any) -> Any:
        need = needs.get(declared.buffer.name)
        if need is None or ir.pointer_of(declared.data) is not None:  # a view of an argument
            return mutator.default_mutate(declared)
        # In front: LLVM is told there that the pointer is aligned, and drops checks behind.
        return ir.seq(_assert(declared.data, need), declared)

    func = func.with_body(ir.mutate(func.body, [(tirx.DeclBuffer, visit)]))
    return func.without_attr(ALIGNMENT)


def _assert(pointer: Any, need: Alignment) -> ir.Stmt:
    address = tirx.reinterpret("uint64", pointer)
    rest = tirx.bitwise_and(address, tirx.IntImm("uint64", need.num_bytes - 1))
    return ir.make_assert(
        rest.equal(tirx.IntImm("uint64", 0)),
        f"{need.tensor}: found a start address that is no multiple of {need.num_bytes} bytes; "
        f"need one that is; pass a copy, or a tensor that does not start inside another",
    )


@prim_func_pass(opt_level=0, name="tvm_hopper.AssertAlignment")
class AssertAlignment:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Assert the alignment of one host function's tensors."""
        if not (plan := plan_asserts(func)):
            return func
        after = rewrite_asserts(func, plan)
        assert not plan_asserts(after), "AssertAlignment left a tensor unchecked"
        return after
