"""TIR helpers of the simulator: op names, types, operands of PTX calls.

`decode_ptx` reads the operand names and modifiers of a `tirx.ptx.*` call from TVM's own instruction
table, so that one handler per instruction family is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, sym, tirx
from tvm.backend.cuda.ptx.table import TABLE, mods, operand_layout

from tvm_hopper.facts.arch import ARCHS, DEFAULT_ARCH, Arch
from tvm_hopper.facts.devices import NUM_SMS_ATTR
from tvm_hopper.sim.walk import walk_nodes

try:
    import ml_dtypes
except ImportError:  # TVM itself depends on it; without it only the standard types run
    ml_dtypes = None

PTX, CUDA, PRINTED = "tirx.ptx.", "tirx.cuda.", "tirx.cuda_"
COOPERATIVE = "tirx.use_cooperative_launch"  # tags of TVM's runtime among the launch parameters
PROGRAMMATIC = "tirx.use_programtic_dependent_launch"
# On a host function: places of parameters that no launch before it in the stream writes.
PROMISED = "tvm_hopper.promised_tensors"

# Types in the names of PTX instructions -> TVM dtypes, written from PTX ISA 9.1, 5.2.1 and the
# instructions' own pages: `facts.dtypes` names the instructions that the lowering emits.
DTYPE_OF = {
    "b8": "uint8",
    "u8": "uint8",
    "s8": "int8",
    "b16": "uint16",
    "u16": "uint16",
    "s16": "int16",
    "b32": "uint32",
    "u32": "uint32",
    "s32": "int32",
    "f32": "float32",
    "b64": "uint64",
    "u64": "uint64",
    "s64": "int64",
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "tf32": "float32",  # as stored: the tensor cores leave out the lowest 13 bits
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}


def arch_of_kernel(func: tirx.PrimFunc) -> Arch:
    """Return the architecture of a device function's target; DEFAULT_ARCH where it names none."""
    return ARCHS.get(arch_name(func), DEFAULT_ARCH)


def arch_name(func: tirx.PrimFunc) -> str:
    """Return the `arch` that a device function's target names, or an empty string."""
    target = func.attrs.get("target", None) if func.attrs else None
    return "" if target is None else str(target.attrs.get("arch", ""))


def num_sms_of_kernel(func: tirx.PrimFunc) -> int | None:
    """Return the SM count that a device function's target states, or None."""
    target = func.attrs.get("target", None) if func.attrs else None
    said = None if target is None else target.attrs.get(NUM_SMS_ATTR)
    return None if said is None else int(said)


def launch_tags(func: tirx.PrimFunc) -> list[str]:
    """Return the launch tags of a device function: extents, memory, and how it is launched.

    TVM's runtime takes them from `tirx.kernel_launch_params`. To launch as `COOPERATIVE` or
    `PROGRAMMATIC`, a function of one kernel has that attribute before it is lowered.
    """
    return [str(tag) for tag in (func.attrs or {}).get("tirx.kernel_launch_params", [])]


def thread_extents(func: tirx.PrimFunc) -> dict[str, tuple[Any, Any]]:
    """Return (variable, extent) of each launch dimension, by thread tag."""
    launches = [x for x in nodes_in(func.body, tirx.AttrStmt) if x.attr_key == "thread_extent"]
    return {str(x.node.thread_tag): (x.node.var, x.value) for x in launches}


def param_names(func: tirx.PrimFunc) -> list[str]:
    """Return a name for each parameter of a device function: its own, numbered where two share it.

    TVM distinguishes parameters by node; two tensors of one name are legal.
    """
    names: list[str] = []
    for param in func.params:
        name, number = str(param.name), 0
        while name in names:
            number += 1
            name = f"{param.name}_{number}"
        names.append(name)
    return names


@dataclass(frozen=True)
class PtxCall:
    """One PTX instruction: operands by name (a list of expressions each), modifiers by slot."""

    name: str
    operands: dict[str, list[Any]]
    writes: tuple[str, ...]
    mods: dict[str, str]
    pred: Any = None

    @property
    def results(self) -> list[ir.TensorLoad]:
        """Registers that it writes."""
        targets = (x for name in self.writes for x in self.operands.get(name, []))
        return [x for x in targets if isinstance(x, ir.TensorLoad)]

    @property
    def sources(self) -> list[Any]:
        """Operands that it does not write."""
        read = (values for name, values in self.operands.items() if name not in self.writes)
        return [x for values in read for x in values if x is not None]


def op_name(call: ir.Call) -> str:
    """Return the name of the operator or function that a call names."""
    return str(getattr(call.op, "name", None) or getattr(call.op, "name_hint", call.op))


def short_name(call: ir.Call) -> str:
    """Return an operator's name without its dialect ("tirx.", "prim.")."""
    name = op_name(call)
    for dialect in ("tirx.", "tir.", "prim."):
        name = name.removeprefix(dialect)
    return name


def decode_ptx(call: Any) -> PtxCall | None:
    """Decode a `tirx.ptx.*` call; None if it is none, or the table has no such entry."""
    if not isinstance(call, ir.Call) or not op_name(call).startswith(PTX):
        return None
    name = op_name(call)[len(PTX) :]
    entry = TABLE.get(name)
    if entry is None:
        return None
    args = list(call.args)
    flags = str(args[-1].value).split(",")
    count = len(entry.slots)
    tokens = [str(a.value) for a in args[len(args) - count - 1 : -1]]
    rest = args[: len(args) - count - 1]
    modifiers = mods(entry, tokens)
    sunk = {int(f[1:]) for f in flags if f[:1] == "s" and f[1:].isdigit()}
    operands: dict[str, list[Any]] = {}
    writes = []
    position = 0
    for slot, first, lanes in operand_layout(entry, modifiers):
        values: list[Any] = []
        for index in range(first, first + lanes):
            if index in sunk:
                values.append(None)
            else:
                values.append(rest[position])
                position += 1
        if lanes:
            operands[slot.name] = values
        if "w" in getattr(slot, "rw", "r"):
            writes.append(slot.name)
    pred = rest[position] if "pred" in flags else None
    return PtxCall(name, operands, tuple(writes), modifiers, pred)


def nodes_in(root: Any, kind: Any, order: str = "post") -> list[Any]:
    """Return the nodes of a class in an expression or a statement, in the order of a walk."""
    found: list[Any] = []
    walk_nodes(root, [(kind, found.append)], order=order)
    return found


def dtype_of(node: Any) -> str:
    """Return the TIR dtype of an expression ("handle" for a pointer)."""
    ty = getattr(node, "ty", None)
    dtype = getattr(ty, "dtype", None)
    return "handle" if dtype is None or isinstance(ty, ir.PointerType) else str(dtype)


def split_lanes(dtype: str) -> tuple[str, int]:
    """Split "float16x2" into its scalar type and its number of vector lanes."""
    head, cross, tail = dtype.rpartition("x")
    if cross and tail.isdigit() and head and (head[-1].isdigit() or head.startswith("float8")):
        return head, int(tail)
    return dtype, 1


def is_one_load(index: tirx.Ramp) -> bool:
    """Return whether TVM prints the load of a dense vector as one access, not element by element.

    It does where it can prove that the vector is aligned (TVM, `CodeGenC`, `BufferLoadNode`). A
    store is one access wherever it goes.
    """
    start, lanes = sym.Analyzer().modular_set(index.base), int(index.lanes)
    return start.coeff % lanes == 0 and start.base % lanes == 0


def numpy_dtype(dtype: str) -> np.dtype:
    """Return the numpy type that stores one element.

    - raises KeyError: the type has no numpy counterpart (for example sub-byte types).
    """
    dtype, _ = split_lanes(dtype)
    if dtype == "bool":
        return np.dtype(np.bool_)
    if dtype == "handle":
        return np.dtype(np.int64)
    if ml_dtypes is not None and hasattr(ml_dtypes, dtype):
        return np.dtype(getattr(ml_dtypes, dtype))
    try:
        return np.dtype(dtype)
    except TypeError:
        raise KeyError(
            f"type {dtype}: found no numpy counterpart; need a whole-byte type"
        ) from None


def statement_text(node: Any, limit: int = 160) -> str:
    """Return one line for a statement: PTX as PTX, anything else as TVMScript."""
    ptx = decode_ptx(getattr(node, "value", None))
    if ptx is None:
        return _shorten(_one_line(node), limit)
    family = TABLE[ptx.name].family
    words = ".".join([family, *[token for token in ptx.mods.values() if token]])
    operands = [
        f"{name}[{len(values)}]" if len(values) > 4 else ", ".join(map(_operand, values))
        for name, values in ptx.operands.items()
    ]
    return _shorten(f"{words} {', '.join(operands)}", limit)


def _operand(node: Any) -> str:
    """Return an operand's text, addresses as `&buffer[index]`."""
    while isinstance(node, ir.Call):
        name = short_name(node)
        if name == "address_of":
            return f"&{_one_line(node.args[0])}"
        if name not in ("cuda.cvta_generic_to_shared", "reinterpret"):
            break
        node = node.args[0]
    return _one_line(node)


def _one_line(node: Any) -> str:
    lines = [line.strip() for line in str(node).splitlines()]
    code = [line for line in lines if line and not line.startswith(("#", "@", "def ", "from "))]
    if code and code[0].startswith(("for ", "while ", "if ")):
        return code[0]
    return code[-1] if code else ""


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def slot_of(node: Any, offset: int) -> int | None:
    """Return which mbarrier of its ring a statement names; None if that is unknown.

    Rings lie in one buffer, each after a constant: at byte 15368, `bar[k % 3 + 1920]` is slot 1.
    """
    found = nodes_in(node, ir.TensorLoad, "pre")
    loads = [load for load in found if load.source.scope().startswith("shared")]
    if not loads or isinstance(index := loads[0].indices[-1], tirx.IntImm):
        return None
    if not isinstance(index, tirx.Add) or not isinstance(index.b, tirx.IntImm):
        return None
    slot = offset // 8 - int(index.b)
    return slot if slot >= 0 else None


def _accesses(node: Any) -> list[tuple[Any, list[Any]]]:
    """Return the buffer and the indices of each load and store of a statement."""
    found: list[tuple[Any, list[Any]]] = []
    load = (ir.TensorLoad, lambda x: found.append((x.source, list(x.indices))))
    walk_nodes(
        node, [load, (tirx.BufferStore, lambda x: found.append((x.buffer, list(x.indices))))]
    )
    return found


def index_sources(node: Any, statements: list[Any]) -> list[str]:
    """Return the tensors of global memory that the indices of a statement are read from.

    An index that waits in registers is followed to the `statements` that store there.
    """
    values = [index for _, indices in _accesses(node) for index in indices]
    stores = [x for x in statements if isinstance(x, tirx.BufferStore)]
    sources: dict[Any, None] = {}
    for value in values:  # which grows
        for load in nodes_in(value, ir.TensorLoad, "pre"):
            if load.source not in sources and load.source.scope() == "local":
                values += [x.value for x in stores if x.buffer == load.source]
            sources[load.source] = None
    return [str(x.name) for x in sources if x.scope() == "global"]


def shared_buffer(node: Any) -> str:
    """Return the name of the first shared buffer in a statement, or an empty string."""
    buffers = (buffer for buffer, _ in _accesses(node))
    return next((str(x.name) for x in buffers if x.scope().startswith("shared")), "")
