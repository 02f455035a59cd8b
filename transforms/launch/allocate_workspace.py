"""Allocate workspaces between kernels from the caller's allocator, which knows streams and graphs.

    partial = alloc_buffer((262144,), "float32")            in a host function: memory of the device
    call_ffi_kernel("main_kernel", partial.data, ..)
    call_ffi_kernel("main_kernel_1", partial.data, ..)
  ->
    from_caller = not isnullptr(TVMFFIEnvGetDLPackManagedTensorAllocator())
    if from_caller: assert TVMFFIEnvTensorAlloc(1048576 bytes of the device, &tensor) == 0
    memory = if_then_else(from_caller, tensor.data, TVMBackendAllocWorkspace(1048576 bytes))
    assert not isnullptr(memory)
    partial = decl_buffer((262144,), "float32", data=memory)
    call_ffi_kernel("main_kernel", partial.data, ..)
    call_ffi_kernel("main_kernel_1", partial.data, ..)
    if from_caller: TVMFFIObjectDecRef(tensor)
    else: TVMBackendFreeWorkspace(memory)

TVM's pool belongs to a thread and knows nothing of streams: two calls of one thread on two streams
get the same memory, while the first one's kernels still run. And where it has none it calls
cudaMalloc, which a capture does not allow. tvm-ffi lets a call use the allocator of the library
whose tensors it got (`tvm/ffi/extra/c_env_api.h`): PyTorch's gives memory back to the stream that
it was taken on, and a captured graph keeps its own. Calls with TVM's tensors go on using the pool.
Where one branch of the host launches all kernels that use the memory, it is taken there alone.

Before: the host function is packed.  After: it allocates no memory of a device in another way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Op

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.transforms.kernel_pass import planned_pass

CUDA = 2  # DLPack's kDLCUDA
BYTE = (1, 8, 1)  # DLPack's kDLUInt, bits, lanes
# Fields of a DLTensor, and the value in a slot of a packed call: TVMStructFieldKind of
# tvm/tirx/builtin.h.
DATA, SHAPE, STRIDES, NDIM, CODE, BITS, LANES, OFFSET, DEVICE, DEVICE_TYPE = range(1, 11)
VALUE, SHAPE_ELEMENT = 15, 17
VALUE_OFFSET = 8  # bytes into such a slot
TENSOR_OFFSET = 24  # of the DLTensor in a tensor object: the header before it


@dataclass(frozen=True)
class HostArray:
    """Memory of a device that a host function allocates, its bytes, and which device it is."""

    stmt: Any
    num_bytes: Any
    device: ir.Var


def plan_workspaces(func: tirx.PrimFunc) -> tuple[HostArray, ...]:
    """Find the arrays that a packed host function allocates for its kernels."""
    if not ir.is_packed(func):
        return ()
    devices = [x.var for x in ir.find_all(func.body, tirx.Bind) if ir.is_device_id(x.value)]
    arrays = ir.find_all(func.body, tirx.AllocBuffer, lambda x: _is_of_device(x.buffer))
    return tuple(HostArray(x, _num_bytes(x.buffer), devices[0]) for x in arrays if devices)


def _is_of_device(buffer: ir.Var) -> bool:
    return str(buffer.scope()) in ("", "global")


def _num_bytes(buffer: ir.Var) -> Any:
    sizes = [tirx.Cast("int64", x) for x in buffer.shape]
    element, _, lanes = ir.dtype_of(buffer).partition("x")  # "float16x8": TVM writes vectors
    return ir.simplify(prod(sizes) * dtype_bytes(element) * int(lanes or 1))


def rewrite_workspaces(func: tirx.PrimFunc, plan: tuple[HostArray, ...]) -> tirx.PrimFunc:
    """Ask the caller's allocator, if there is one, and give the memory back at the end."""

    def visit(node: tirx.SeqStmt, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        stmts = ir.statements(node)
        place = next((i for i, x in enumerate(stmts) if any(x.same_as(y.stmt) for y in plan)), None)
        if place is None:
            return node
        one = next(x for x in plan if stmts[place].same_as(x.stmt))
        return ir.seq(*stmts[:place], *_around(stmts[place + 1 :], one))

    body = func.body
    for _ in plan:  # those of one sequence one after another
        body = ir.mutate(body, [(tirx.SeqStmt, visit)])
    return func.with_body(body)


def _around(stmts: list[ir.Stmt], one: HostArray) -> list[ir.Stmt]:
    """Put taking and giving back around statements, or inside of the only branch that uses it."""
    buffer = one.stmt.buffer
    users = [x for x in stmts if ir.uses(x, buffer)]
    if len(users) == 1 and isinstance(users[0], ir.IfThenElse):
        (branch,) = users
        cases = branch.then_case, branch.else_case
        using = [x for x in cases if x is not None and ir.uses(x, buffer)]
        if len(using) == 1 and not ir.uses(branch.condition, buffer):
            (case,) = using
            inside = ir.seq(*_around(ir.statements(case), one))
            new = [inside if x is not None and x.same_as(case) else x for x in cases]
            chosen = ir.IfThenElse(branch.condition, *new)
            return [chosen if x.same_as(branch) else x for x in stmts]
    front, back = _take(one)
    return [*front, *stmts, *back]


def _take(one: HostArray) -> tuple[list[ir.Stmt], list[ir.Stmt]]:
    """Return what takes the memory and what gives it back."""
    buffer = one.stmt.buffer
    kind = buffer.data.ty
    slot, shape = _bind("slot", _stack("tvm_ffi_any")), _bind("shape", _stack("shape"))
    wanted = _bind("wanted", _stack("array"))
    is_given = _bind("from_caller", ir.has_allocator())
    given = _bind("given", _get(slot.var, VALUE))
    fields = {
        DATA: _null(),
        SHAPE: shape.var,
        STRIDES: _null(),
        NDIM: _int(1),
        CODE: tirx.const(BYTE[0], "uint8"),
        BITS: tirx.const(BYTE[1], "uint8"),
        LANES: tirx.const(BYTE[2], "uint16"),
        OFFSET: tirx.const(0, "uint64"),
        DEVICE: one.device,
        DEVICE_TYPE: _int(CUDA),
    }
    asked = _extern("int32", "TVMFFIEnvTensorAlloc", wanted.var, _behind(slot.var, VALUE_OFFSET))
    ask = ir.seq(
        ir.Evaluate(_set(shape.var, SHAPE_ELEMENT, one.num_bytes)),
        *(ir.Evaluate(_set(wanted.var, field, value)) for field, value in fields.items()),
        ir.make_assert(asked.equal(0), f"{buffer.name}: no memory for {one.num_bytes} bytes"),
    )
    from_pool = tirx.call_intrin(
        kind,
        "tirx.TVMBackendAllocWorkspace",
        _int(CUDA),
        one.device,
        tirx.Cast("uint64", one.num_bytes),
        _int(BYTE[0]),
        _int(BYTE[1]),
    )
    data = tirx.reinterpret(kind, _get(_behind(given.var, TENSOR_OFFSET), DATA))
    choice = ir.Call(Op.get("prim.if_then_else"), [is_given.var, data, from_pool], ret_ty=kind)
    memory = _bind("memory", choice)
    front = [
        *(slot, shape, wanted, is_given),
        ir.Evaluate(_set(slot.var, VALUE, tirx.const(0, "int64"))),
        ir.IfThenElse(is_given.var, ask, None),
        given,
        memory,
        ir.make_assert(_not_null(memory.var), f"{buffer.name}: no memory for it"),
        tirx.DeclBuffer(buffer, data=memory.var),
    ]
    freed = _extern("int32", "TVMFFIObjectDecRef", given.var)
    to_pool = tirx.call_intrin(
        "int32", "tirx.TVMBackendFreeWorkspace", _int(CUDA), one.device, memory.var
    )
    return front, [ir.IfThenElse(is_given.var, ir.Evaluate(freed), ir.Evaluate(to_pool))]


def _bind(name: str, value: Any) -> tirx.Bind:
    return tirx.Bind(ir.Var(name, value.ty), value)


def _extern(dtype: str, name: str, *args: Any) -> Any:
    return tirx.call_extern(dtype, name, *args)


def _stack(kind: str) -> Any:
    return tirx.tvm_stack_alloca(kind, 1)


def _set(struct: Any, field: int, value: Any) -> Any:
    return tirx.tvm_struct_set(struct, 0, field, value)


def _get(struct: Any, field: int) -> Any:
    return tirx.tvm_struct_get(struct, 0, field, "handle")


def _behind(pointer: Any, num_bytes: int) -> Any:
    return tirx.handle_add_byte_offset(pointer, num_bytes)


def _not_null(pointer: Any) -> Any:
    return tirx.Not(tirx.isnullptr(pointer))


def _null() -> Any:
    return tirx.reinterpret("handle", tirx.const(0, "uint64"))


def _int(value: int) -> Any:
    return tirx.const(value, "int32")


AllocateWorkspace = planned_pass("AllocateWorkspace", plan_workspaces, rewrite_workspaces)
