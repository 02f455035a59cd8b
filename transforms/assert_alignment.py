"""Check on the host, at each call, that tensors start where the kernel's wide accesses may.

RequireAlignment, at the hook:

    cuTensorMapEncodeTiled(A_map, "float16", 2, A.data, ...)
    kernel: for e in vectorized(2): D[..., e] = ...
            cp.async.bulk(&tile[...], &B[...], ...)
  ->
    func_attr({"tvm_hopper.alignment": [0, 16, 3, 4]})                 argument, bytes

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
from tvm_hopper.analysis.vector_runs import is_aligned_run
from tvm_hopper.codegen_patches.ptx.alignment import copy_alignment
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.dtypes import DTYPES, dtype_bytes
from tvm_hopper.facts.tensor_map import ADDRESS_ALIGNMENT
from tvm_hopper.requests.keys import ALIGNMENT

ENCODE = "runtime.cuTensorMapEncodeTiled"
_DATA_ARGUMENT = 4  # of ENCODE: name, map, type, rank, data


@dataclass(frozen=True)
class Alignment:
    """One tensor and the bytes that its start must be a multiple of.

    `argument` is its place among the function's: two tensors may have one name.
    """

    argument: int
    num_bytes: int


def plan_requirements(func: tirx.PrimFunc) -> tuple[Alignment, ...]:
    """List the tensors that wide accesses touch, each with its widest.

    Tensors that are no arguments are allocated by TVM, more aligned than any access is wide.
    """
    needs: dict[int, int] = {}

    def need(buffer: ir.Var, num_bytes: int) -> None:
        for number, param in enumerate(func.params):
            if param.same_as(buffer) and num_bytes > 1:
                needs[number] = max(needs.get(number, 1), num_bytes)

    for call in ir.find_all(func.body, ir.Call, _is_encode):
        address = call.args[_DATA_ARGUMENT]
        buffer = ir.pointer_of(address)
        if buffer is None:  # behind the start; by how much, LowerCopies has looked at
            buffer = next((x.source for x in ir.find_all(address, ir.TensorLoad)), None)
        if buffer is not None:
            need(buffer, ADDRESS_ALIGNMENT)
    for call in ir.find_all(func.body, ir.Call, lambda x: copy_alignment(x) > 1):
        for load in ir.find_all(list(call.args), ir.TensorLoad):
            need(load.source, copy_alignment(call))
    for loop in ir.find_all(func.body, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED):
        length = int(loop.extent)
        touched = [store.buffer for store in ir.find_all(loop, ir.BufferStore)]
        touched += [  # TVM prints other loads one by one
            load.source
            for load in ir.find_all(loop, ir.TensorLoad)
            if is_aligned_run(load.source, list(load.indices), loop.loop_var, length)
        ]
        for buffer in touched:
            if ir.dtype_of(buffer) not in DTYPES:
                raise cannot_lower(
                    f"tensor {buffer.name}",
                    f"vectors of {ir.dtype_of(buffer)}",
                    f"elements of whole bytes, one of {', '.join(DTYPES)}",
                    "let a kernel of its own unpack them, or pass the bytes",
                )
            need(buffer, length * dtype_bytes(ir.dtype_of(buffer)))
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
        flat = [item for need in plan for item in (need.argument, need.num_bytes)]
        return func.with_attr(ALIGNMENT, flat) if flat else func


def plan_asserts(func: tirx.PrimFunc) -> tuple[Alignment, ...]:
    """Read the requirements off a packed host function; nothing elsewhere."""
    if ALIGNMENT not in func.attrs or not ir.is_packed(func):
        return ()
    flat = list(func.attrs[ALIGNMENT])
    return tuple(Alignment(int(a), int(n)) for a, n in zip(flat[::2], flat[1::2], strict=True))


def rewrite_asserts(func: tirx.PrimFunc, plan: tuple[Alignment, ...]) -> tirx.PrimFunc:
    """Put each assert where the tensor's pointer becomes known."""
    needs = {need.argument: need for need in plan}
    bound = {bind.var: bind.value for bind in ir.find_all(func.body, tirx.Bind)}

    def visit(declared: Any, mutator: Any) -> Any:
        argument = _argument_of(declared.data, func.params, bound)
        need = None if argument is None else needs.get(argument)
        if need is None or ir.pointer_of(declared.data) is not None:  # a view of an argument
            return mutator.default_mutate(declared)
        # In front: LLVM is told there that the pointer is aligned, and drops checks behind.
        return ir.seq(_assert(declared, need), declared)

    func = func.with_body(ir.mutate(func.body, [(tirx.DeclBuffer, visit)]))
    return func.without_attr(ALIGNMENT)


def _argument_of(pointer: Any, params: Any, bound: dict[ir.Var, Any]) -> int | None:
    """Return which packed argument a pointer is read from, None if from no single one."""
    found: set[int] = set()
    for call in ir.find_all(pointer, ir.Call, lambda x: x.op.name == "tirx.tvm_struct_get"):
        base, number = call.args[0], ir.static_int(call.args[1])
        if any(base.same_as(param) for param in params) and number is not None:
            found.add(number)
        elif isinstance(base, ir.Var) and base in bound:
            inner = _argument_of(bound[base], params, bound)
            found |= set() if inner is None else {inner}
    return found.pop() if len(found) == 1 else None


def _assert(declared: Any, need: Alignment) -> ir.Stmt:
    address = tirx.reinterpret("uint64", declared.data)
    rest = tirx.bitwise_and(address, tirx.IntImm("uint64", need.num_bytes - 1))
    return ir.make_assert(
        rest.equal(tirx.IntImm("uint64", 0)),
        f"{declared.buffer.name}: found a start address that is no multiple of {need.num_bytes} "
        f"bytes; need one that is; pass a copy, or a tensor that does not start inside another",
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
