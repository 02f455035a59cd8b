"""Names, types and shapes of a host function's arguments, read from its own checks.

After packing, a host function has only `args`; it binds `<name>.type_index` for each argument, and
declares a buffer `<name>` with the shape that it has checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvm_hopper.sim.launch.tensors import SPECIAL_CODES
from tvm_hopper.sim.tir import short_name
from tvm_hopper.sim.walk import walk_nodes

SUFFIX = ".type_index"
Size = Any  # a number, the name of a variable, or an expression of such


@dataclass(frozen=True)
class Argument:
    """One argument of a host function.

    - `shape`: None for a scalar, else ints, names of variables and expressions of them.
    - `strides`: in elements, as far as the function declares them; None: the tensor is compact.
    - `elem_offset`: where the elements begin, in elements from the tensor's data.
    - `offset_factor`: divisor of a symbolic `elem_offset`.
    """

    name: str
    dtype: str
    shape: tuple[Size, ...] | None
    strides: tuple[Size, ...] | None = None
    elem_offset: Size = 0
    offset_factor: int = 1


def _size(value: Any) -> Size:
    if isinstance(value, tirx.IntImm):
        return int(value)
    return str(value.name) if isinstance(value, ir.Var) else value


def signature(host_func: tirx.PrimFunc) -> list[Argument]:
    """Return the arguments of a packed host function, in order.

    - raises ValueError: two arguments have the same name.
    """
    names: dict[int, str] = {}
    buffers: dict[str, Any] = {}
    scalars: dict[int, str] = {}
    special: dict[str, str] = {}
    types = {code: name for name, code in SPECIAL_CODES.items()}

    def bind(node: tirx.Bind) -> None:
        value = node.value
        if not isinstance(value, ir.Call) or short_name(value) != "tvm_struct_get":
            return
        source, index, field = value.args[:3]
        if getattr(source, "name", "") != "args":
            return
        if int(field) == 13 and node.var.name.endswith(SUFFIX):
            names[int(index)] = node.var.name.removesuffix(SUFFIX)
        elif int(field) == 15:
            scalars[int(index)] = str(node.var.ty)

    def declare(node: tirx.DeclBuffer) -> None:
        buffers.setdefault(node.buffer.name, node.buffer)

    def check_type(node: tirx.EQ) -> None:
        # On the host bfloat16 is stored as uint16, and a float8 as uint8; the check of the
        # argument still has its code.
        call, code = node.a, node.b
        if isinstance(call, ir.Call) and short_name(call) == "tvm_struct_get":
            handle = getattr(call.args[0], "name", "")
            if int(call.args[2]) == 5 and int(code) in types:
                special[handle.removesuffix(".handle")] = types[int(code)]

    walk_nodes(
        host_func.body, [(tirx.Bind, bind), (tirx.DeclBuffer, declare), (tirx.EQ, check_type)]
    )
    if twice := {x for x in names.values() if list(names.values()).count(x) > 1}:
        raise ValueError(
            f"arguments: found several of the name {', '.join(sorted(twice))}; need a name for "
            "each one; rename the parameters (relax gives both parts of a split one name)"
        )
    found = []
    for index in sorted(names):
        name = names[index]
        buffer = buffers.get(name)
        if buffer is None:
            found.append(Argument(name, scalars.get(index, "int64").removeprefix("T."), None))
            continue
        found.append(
            Argument(
                name,
                special.get(name, str(buffer.ty.dtype.dtype)),
                tuple(map(_size, buffer.ty.shape)),
                tuple(map(_size, buffer.ty.strides)) or None,
                _size(buffer.ty.elem_offset),
                int(buffer.ty.offset_factor),
            )
        )
    return found
