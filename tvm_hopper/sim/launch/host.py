"""The host function, interpreted: which kernels it launches, with which tensor maps.

It runs once per simulation, so it is walked node by node.  Every assertion of the host function is
checked; an address is (tensor, byte offset) and an `any` slot of the packed call is a small dict.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvm_hopper.errors import VerifyError
from tvm_hopper.facts.arch import DEFAULT_ARCH, Arch
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.sim.integers import BINARY, CALLS
from tvm_hopper.sim.launch.runtime_calls import device_attribute, encode_map
from tvm_hopper.sim.launch.signature import signature
from tvm_hopper.sim.launch.tensors import CUDA, HostTensor, Pointer, Workspace
from tvm_hopper.sim.launch.tma import TensorMapArg
from tvm_hopper.sim.machine import lanes
from tvm_hopper.sim.tir import (
    dtype_of,
    launch_tags,
    numpy_dtype,
    param_names,
    short_name,
    statement_text,
)

TYPE_INDEX, VALUE, SHAPE_ELEMENT = 13, 15, 17
DATA, SHAPE, NDIM, CODE, BITS, DEVICE_TYPE = 1, 2, 4, 5, 6, 10  # fields of a DLTensor
ENCODE, ENCODE_IM2COL = "runtime.cuTensorMapEncodeTiled", "runtime.cuTensorMapEncodeIm2col"
ALLOCATOR = "TVMFFIEnvGetDLPackManagedTensorAllocator"
KDL_TENSOR = 7


@dataclass
class MapBox:
    """Space for one tensor map on the host's stack."""

    value: TensorMapArg | None = None


@dataclass(frozen=True)
class Launch:
    """One kernel launch: arguments in the order of the device function's parameters, then extents.

    - `kernel`: name of the device function.
    - `args` (tuple): `Pointer`, `TensorMapArg` or number; thread extents and shared memory bytes at
      the end.
    - `workspaces`: workspaces that the host function allocated for its kernels, by name, at this
      launch.
    """

    kernel: str
    args: tuple[Any, ...]
    workspaces: Mapping[str, Workspace] = field(default_factory=dict)

    def bind(self, func: tirx.PrimFunc) -> dict[str, Any]:
        """Split the arguments into parameters and launch geometry of a device function."""
        tags = launch_tags(func)
        count = len(func.params)
        params = dict(zip(param_names(func), self.args[:count], strict=True))
        extents = dict.fromkeys(("blockIdx", "threadIdx", "clusterCtaIdx"))
        geometry: dict[str, list[int]] = {name: [1, 1, 1] for name in extents}
        smem = 0
        values = iter(self.args[count:])
        for tag in tags:
            name, dot, axis = tag.partition(".")
            if name in geometry and dot:
                geometry[name]["xyz".index(axis)] = int(next(values))
            elif tag == "tirx.use_dyn_shared_memory":
                smem = int(next(values))
        return {
            "params": params,
            "grid": tuple(geometry["blockIdx"]),
            "block": tuple(geometry["threadIdx"]),
            "cluster": tuple(geometry["clusterCtaIdx"]),
            "dyn_smem_bytes": smem,
        }


@dataclass(frozen=True)
class _Allocation:
    """Memory that `TVMBackendAllocWorkspace` gives, before it has a name."""

    num_bytes: int
    dtype: np.dtype


def _allocate(device: int, _number: int, num_bytes: int, code: int, bits: int) -> _Allocation:
    if device != CUDA:
        raise VerifyError(
            f"host function: found a workspace on device type {device}; need CUDA's, {CUDA}"
        )
    kinds = {0: "int", 1: "uint", 2: "float"}
    plain = code in kinds and bits in (8, 16, 32, 64) and (code, bits) != (2, 8)
    return _Allocation(num_bytes, np.dtype(f"{kinds[code]}{bits}" if plain else f"V{bits // 8}"))


def _allocate_tensor(wanted: Any, slot: Any) -> int:
    """Put a tensor of bytes into a slot of a packed call, as the caller's allocator makes it."""
    fields = wanted[0]
    if fields[DEVICE_TYPE] != CUDA or (fields[CODE], fields[BITS]) != (1, 8) or fields[NDIM] != 1:
        raise VerifyError("host function: found a tensor of other memory; need bytes of a device")
    slot[0][VALUE] = [{DATA: _Allocation(fields[SHAPE][0][SHAPE_ELEMENT], np.dtype("uint8"))}]
    return 0


def _numbered(name: str) -> Iterator[str]:
    yield name
    for number in itertools.count(1):
        yield f"{name}_{number}"


class _Return(Exception):
    """The host function returned."""


class HostInterpreter:
    """Walks one host function."""

    def __init__(
        self,
        func: tirx.PrimFunc,
        inputs: Mapping[str, Any],
        num_sms: int = DEFAULT_NUM_SMS,
        arch: Arch = DEFAULT_ARCH,
        allocator: bool = False,
    ) -> None:
        self.func, self.num_sms, self.arch = func, num_sms, arch
        self.allocator = allocator
        self.env: dict[Any, Any] = {}
        self.launches: list[Launch] = []
        self.workspaces: dict[str, Workspace] = {}
        self.tensors = set(inputs)
        offsets = {a.name: a.elem_offset for a in signature(func)}
        values: list[Any] = [
            HostTensor(name, value, _constant(offsets.get(name, 0)))
            if isinstance(value, np.ndarray)
            else value.item()
            if isinstance(value, np.generic)
            else value
            for name, value in inputs.items()
        ]
        self.packed: list[dict[int, Any]] = [{TYPE_INDEX: _type_index(v), VALUE: v} for v in values]
        names = [p.name for p in func.params]
        if names[:3] == ["self_handle", "args", "num_args"]:
            for param, value in zip(
                func.params, (None, self.packed, len(values), None), strict=False
            ):
                self.env[param] = value
        else:
            for param, value in zip(func.params, values, strict=True):
                self.env[param] = value

    # -- statements -------------------------------------------------------------------------------

    def run(self) -> list[Launch]:
        """Run the function."""
        with contextlib.suppress(_Return):
            self.stmt(self.func.body)
        return self.launches

    def at(self, node: Any, error: Exception) -> VerifyError:
        """Raise an error that names the statement at which the host function cannot be followed."""
        return VerifyError(
            f"host function: found {type(error).__name__} ({error}) at {statement_text(node)}; "
            "need one that is modelled"
        )

    def stmt(self, node: Any) -> None:
        """Run one statement."""
        kind = type(node).__name__
        if kind == "SeqStmt":
            for inner in node.seq:
                self.stmt(inner)
        elif kind == "AttrStmt":
            self.stmt(node.body)
        elif kind in ("Bind", "LetStmt"):
            value = self.value(node.value, node)
            if isinstance(value, _Allocation):
                value = self.allocate(str(node.var.name), value)
            self.env[node.var] = value
            if hasattr(node, "body"):
                self.stmt(node.body)
        elif kind == "IfThenElse":
            if self.value(node.condition, node):
                self.stmt(node.then_case)
            elif node.else_case is not None:
                self.stmt(node.else_case)
        elif kind == "For":
            start, extent = self.value(node.min, node), self.value(node.extent, node)
            for i in range(start, start + extent):
                self.env[node.loop_var] = i
                self.stmt(node.body)
        elif kind == "AssertStmt":
            self._check(node)
        elif kind == "DeclBuffer":
            data = self.value(node.data, node)
            if isinstance(data, _Allocation):
                data = self.allocate(str(node.buffer.name), data)
            self.env[node.buffer] = data
        elif kind == "Evaluate":
            self.value(node.value, node)
        elif kind == "Return":
            raise _Return
        elif kind != "AllocBuffer":
            raise VerifyError(f"host function: found statement {kind}; need one that is modelled")

    def value(self, node: Any, statement: Any) -> Any:
        """Evaluate an expression of a statement, which an error then names."""
        try:
            return self.expr(node)
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise self.at(statement, error) from error

    def _check(self, node: Any) -> None:
        if self.value(node.condition, node):
            return
        parts: Any = getattr(node, "message_parts", None) or [getattr(node, "message", "")]
        text = "".join(str(getattr(p, "value", p)) for p in parts)
        raise ValueError(text or f"host assertion failed: {node.condition}")

    # -- expressions ------------------------------------------------------------------------------

    def expr(self, node: Any) -> Any:
        """Evaluate one expression."""
        kind = type(node).__name__
        if kind in ("IntImm", "FloatImm"):
            return bool(node.value) if dtype_of(node) == "bool" else node.value
        if kind == "StringImm":
            return str(node.value)
        if kind == "Var":
            if node not in self.env:
                raise VerifyError(f"host function: found unbound {node.name}; need its value")
            return self.env[node]
        if kind == "Call":
            return self.call(node)
        if kind == "Cast":
            value = self.expr(node.value)
            if not isinstance(value, (int, float, bool, np.number)):
                return value
            return lanes.cast(value, numpy_dtype(dtype_of(node)), dtype_of(node))
        if kind in ("And", "Or"):
            left = self.expr(node.a)
            if kind == "And":
                return left and self.expr(node.b)
            return left or self.expr(node.b)
        if kind == "Not":
            return not self.expr(node.a)
        if kind in ("Select", "Let"):
            if kind == "Let":
                self.env[node.var] = self.expr(node.value)
                return self.expr(node.body)
            yes = self.expr(node.condition)
            return self.expr(node.true_value if yes else node.false_value)
        if kind in BINARY:
            return BINARY[kind](self.expr(node.a), self.expr(node.b))
        raise VerifyError(f"host function: found expression {kind}; need one that is modelled")

    def call(self, node: ir.Call) -> Any:
        """Evaluate one call."""
        name = short_name(node)
        args = list(node.args)
        if name == "call_extern":
            name, *args = self.expr(args[0]), *args[1:]
        if name == ALLOCATOR:  # without one, memory comes from TVM's pool
            return ALLOCATOR if self.allocator else None
        if name in _CALLS:
            return _CALLS[name](*[self.expr(a) for a in args])
        if name == "if_then_else":
            return self.expr(args[1] if self.expr(args[0]) else args[2])
        if name == "buffer_data":
            return self.env[args[0]]
        if name == "address_of":
            return self.address(args[0])
        if name == "tvm_struct_get":
            return self._get(self.expr(args[0]), self.expr(args[1]), self.expr(args[2]))
        if name == "tvm_struct_set":
            stack, index, field, value = (self.expr(a) for a in args)
            stack[index][field] = value
            return 0
        if name == "tvm_stack_alloca":
            is_map = self.expr(args[0]) == "tensormap"
            return MapBox() if is_map else [{} for _ in range(self.expr(args[1]))]
        if name in _PACKED_CALLS:
            return self.packed_call(self.expr(args[0]), [self.expr(a) for a in args[1:]])
        if name in ("tvm_call_packed_lowered", "tvm_call_cpacked_lowered"):
            stack, first, last = (self.expr(a) for a in args[1:4])
            values = [stack[i][VALUE] for i in range(first, last)]
            return self.packed_call(self.expr(args[0]), values)
        raise VerifyError(f"host function: found call {name}; need one that is modelled")

    def allocate(self, name: str, allocation: _Allocation) -> Pointer:
        """Name a new workspace after the variable that it is bound to."""
        unique = next(n for n in _numbered(name) if n not in self.tensors)
        self.tensors.add(unique)
        self.workspaces[unique] = Workspace(unique, allocation.num_bytes, allocation.dtype)
        return Pointer(unique)

    def _get(self, source: Any, index: int, field: int) -> Any:
        if isinstance(source, HostTensor):
            return source.get(field)
        item = source[index]
        return item[field] if isinstance(item, dict) else item

    def address(self, target: Any) -> Any:
        """Return the address of a variable, or of an element of a buffer."""
        if isinstance(target, ir.Var):
            return self.env[target]
        buffer = target.source
        kind = buffer.ty
        indices = [self.expr(index) for index in target.indices]
        steps = [self.expr(step) for step in kind.strides]
        if not steps:
            steps = [1] * len(indices)
            for i in reversed(range(len(indices) - 1)):
                steps[i] = steps[i + 1] * self.expr(kind.shape[i + 1])
        place = self.expr(kind.elem_offset)
        place += sum(i * step for i, step in zip(indices, steps, strict=True))
        return _offset(self.env[buffer], place * numpy_dtype(str(kind.dtype.dtype)).itemsize)

    def packed_call(self, name: str, args: list[Any]) -> Any:
        """Encode a tensor map, answer a question about the device, or note a kernel launch."""
        if name == "__tvm_set_device":
            return 0
        if name in (ENCODE, ENCODE_IM2COL):
            args[0].value = encode_map(args[1:], name == ENCODE_IM2COL)
            return 0
        if name == "runtime.GetDeviceAttr":
            return device_attribute(args, self.num_sms, self.arch)
        if name.startswith("runtime.") or name.startswith("__"):
            raise VerifyError(f"host function: found call of {name}; need one that is modelled")
        self.launches.append(
            Launch(
                name,
                tuple(a.value if isinstance(a, MapBox) else a for a in args),
                dict(self.workspaces),
            )
        )
        return 0


def _type_index(value: Any) -> int:
    if isinstance(value, HostTensor):
        return KDL_TENSOR
    return 3 if isinstance(value, float) else 1


def _constant(offset: Any) -> int | None:
    return offset if isinstance(offset, int) else None


def _offset(pointer: Any, offset: int) -> Any:
    if isinstance(pointer, Pointer):
        return Pointer(pointer.tensor, pointer.offset + offset)
    return pointer


def _ret(*_: Any) -> None:
    raise _Return


_PACKED_CALLS = ("tvm_call_packed", "tvm_call_cpacked", "call_packed", "call_ffi_kernel")
_CALLS: dict[str, Callable[..., Any]] = {
    "isnullptr": lambda p: p is None,
    "reinterpret": lambda p: p,
    "handle_add_byte_offset": _offset,
    "TVMBackendAllocWorkspace": _allocate,
    "TVMFFIEnvTensorAlloc": _allocate_tensor,
    "TVMFFIObjectDecRef": lambda _: 0,
    "TVMBackendFreeWorkspace": lambda *_: 0,  # a device that is in order: later launches reuse it
    "likely": lambda p: p,
    "ret": _ret,
    **CALLS,
}


class _LazyEnv(dict[Any, Any]):
    """Variables of an expression: given ones, then bound ones, then parameters by name."""

    def __init__(self, env: Mapping[Any, Any], binds: Mapping[Any, Any], params: Any) -> None:
        super().__init__(env)
        self.binds, self.params = binds, params
        self.interpreter: Any = None

    def __contains__(self, var: object) -> bool:
        if dict.__contains__(self, var):
            return True
        if var in self.binds:
            self[var] = self.interpreter.expr(self.binds[var])
            return True
        name = getattr(var, "name", None)
        if isinstance(self.params.get(name), (int, float)):
            self[var] = self.params[name]
            return True
        return False


def evaluate(expr: Any, env: Mapping[Any, Any], binds: Mapping[Any, Any], params: Any) -> Any:
    """Evaluate an expression of a device function from block indices and scalar parameters.

    - raises VerifyError: it depends on something else.
    """
    interpreter = HostInterpreter.__new__(HostInterpreter)
    interpreter.env = _LazyEnv(env, binds, params)
    interpreter.env.interpreter = interpreter
    return interpreter.expr(expr)


def run_host(
    host_func: tirx.PrimFunc,
    inputs: Mapping[str, Any],
    num_sms: int = DEFAULT_NUM_SMS,
    arch: Arch = DEFAULT_ARCH,
    allocator: bool = False,
) -> list[Launch]:
    """Run the host function on inputs in the order of its arguments; return its launches.

    - `host_func`: the entry function after the finalisation of host functions.
    - `inputs` (dict): numpy arrays and numbers; the names are used for tensors in the result. A
      view is passed as one: see `tvm_hopper.sim.launch.tensors`.
    - `num_sms`: number of multiprocessors that `runtime.GetDeviceAttr` returns.
    - `arch`: source of the device's other attributes.
    - `allocator`: whether the call comes with an allocator, as one with PyTorch's tensors does.
    - raises ValueError: an assertion of the host function fails, with its message; or an array's
      strides are no whole elements.
    - raises VerifyError: the host function does something that is not modelled, or that the driver
      would refuse.
    """
    return HostInterpreter(host_func, inputs, num_sms, arch, allocator).run()
