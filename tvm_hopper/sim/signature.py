"""Names, types and shapes of a host function's arguments, read from its own checks.

After packing, a host function has only `args`; it binds `<name>.type_index` for each argument, and
declares a buffer `<name>` with the shape that it has checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from tvm_hopper.sim.tir import numpy_dtype, short_name

SUFFIX = ".type_index"
BFLOAT_CODE = 4  # of DLDataType


@dataclass(frozen=True)
class Argument:
    """One argument: `shape` is None for a scalar, else ints and names of symbolic dimensions."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None


def signature(host_func: tirx.PrimFunc) -> list[Argument]:
    """Return the arguments of a packed host function, in order."""
    names: dict[int, str] = {}
    buffers: dict[str, Any] = {}
    scalars: dict[int, str] = {}
    bfloats: set[str] = set()

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
        # On the host bfloat16 is stored as uint16; the check of the argument still has its code.
        call, code = node.a, node.b
        if isinstance(call, ir.Call) and short_name(call) == "tvm_struct_get":
            handle = getattr(call.args[0], "name", "")
            if int(call.args[2]) == 5 and int(code) == BFLOAT_CODE:
                bfloats.add(handle.removesuffix(".handle"))

    tvm_ffi.structural_walk(
        host_func.body,
        [(tirx.Bind, bind), (tirx.DeclBuffer, declare), (tirx.EQ, check_type)],
    )
    found = []
    for index in sorted(names):
        name = names[index]
        buffer = buffers.get(name)
        if buffer is None:
            found.append(Argument(name, scalars.get(index, "int64").removeprefix("T."), None))
            continue
        shape = tuple(
            int(d) if isinstance(d, tirx.IntImm) else str(getattr(d, "name", d))
            for d in buffer.ty.shape
        )
        dtype = "bfloat16" if name in bfloats else str(buffer.ty.dtype.dtype)
        found.append(Argument(name, dtype, shape))
    return found


def complete(
    arguments: list[Argument], inputs: Mapping[str, Any], fill: Any = None
) -> tuple[dict[str, Any], list[str]]:
    """Add what `inputs` leaves out: outputs with the shape that the others imply.

    Parameters
    ----------
    fill : callable or None
        Makes a value for an argument, `fill(argument, shape)`; None: bytes of 0xFF, and the
        argument counts as an output.

    Returns
    -------
    tuple
        All arguments in order, and the names of those that were left out.

    Raises
    ------
    ValueError
        A name is unknown, a scalar is missing, or a shape cannot be told.
    """
    known = {a.name for a in arguments}
    unknown = sorted(set(inputs) - known)
    if unknown:
        raise ValueError(f"inputs: found {unknown}; need names among {sorted(known)}")
    sizes: dict[str, int] = {}
    for argument in arguments:
        value = inputs.get(argument.name)
        if argument.shape is not None and isinstance(value, np.ndarray):
            for extent, actual in zip(argument.shape, value.shape, strict=False):
                if isinstance(extent, str):
                    sizes.setdefault(extent, actual)
    values: dict[str, Any] = {}
    missing = []
    for argument in arguments:
        if argument.name in inputs:
            values[argument.name] = inputs[argument.name]
            continue
        if argument.shape is None:
            raise ValueError(f"inputs: found no value for scalar {argument.name}; need a number")
        symbols = [d for d in argument.shape if isinstance(d, str) and d not in sizes]
        if symbols:
            raise ValueError(
                f"inputs: found no value for {argument.name}, whose shape has {symbols}; need the "
                "array itself, or one that fixes these sizes"
            )
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in argument.shape)
        dtype = numpy_dtype(argument.dtype)
        if fill is not None:
            values[argument.name] = fill(argument, shape)
        else:
            count = int(np.prod(shape)) * dtype.itemsize
            values[argument.name] = np.full(count, 0xFF, np.uint8).view(dtype).reshape(shape)
        missing.append(argument.name)
    return values, missing
