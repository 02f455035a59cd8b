"""Bytes of one box of each tensor map, read from the host function that encodes the maps."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from tvm import ir, tirx

from tvm_hopper.sim.launch.host import ENCODE, ENCODE_IM2COL, VALUE
from tvm_hopper.sim.tir import numpy_dtype, short_name
from tvm_hopper.sim.walk import walk_nodes


def _plain(value: Any) -> Any:
    while isinstance(value, tirx.Cast) or (
        isinstance(value, ir.Call) and short_name(value) == "reinterpret"
    ):
        value = value.args[0] if isinstance(value, ir.Call) else value.value
    return value


def box_bytes(host_func: tirx.PrimFunc | None, device_func: tirx.PrimFunc) -> dict[str, int]:
    """Return the bytes that one copy of each tensor map delivers, by device parameter name.

    A map whose box is not constant, or whose kernel call is not found, is left out.
    """
    if host_func is None:
        return {}
    found: dict[str, int] = {}
    params = list(device_func.params)
    kernel = str((device_func.attrs or {}).get("global_symbol", ""))
    for target, sizes in _launches(host_func):
        if not kernel or target == kernel:
            found |= {p.name: sizes[n] for n, p in enumerate(params) if n in sizes}
    return found


@lru_cache(maxsize=8)  # a host function launches several kernels, and each calls this
def _launches(host_func: tirx.PrimFunc) -> tuple[tuple[str, dict[int, int]], ...]:
    """Return the callee of each packed call, and the box bytes of each argument that is a map."""
    slots: dict[int, Any] = {}
    boxes: dict[Any, int] = {}
    found: list[tuple[str, dict[int, int]]] = []

    def visit(call: ir.Call) -> None:
        name = short_name(call)
        if name == "tvm_struct_set" and int(call.args[2]) == VALUE:
            slots[int(call.args[1])] = _plain(call.args[3])
        elif name == "tvm_call_packed_lowered":
            target = str(call.args[0].value)
            if target in (ENCODE, ENCODE_IM2COL):
                size = _encoded_box(slots, target == ENCODE_IM2COL)
                if size is not None:
                    boxes[slots[0]] = size
            else:
                found.append((target, {n: boxes[x] for n, x in slots.items() if x in boxes}))

    walk_nodes(host_func.body, [(ir.Call, visit)], order="pre")
    return tuple(found)


def _encoded_box(slots: dict[int, Any], im2col: bool) -> int | None:
    dtype, rank = slots.get(1), slots.get(2)
    if not isinstance(rank, tirx.IntImm) or not isinstance(dtype, ir.StringImm):
        return None
    rank = int(rank.value)
    first = 4 + rank + rank - 1 + (2 * (rank - 2) if im2col else 0)
    numbers = [slots.get(first + i) for i in range(2 if im2col else 2 * rank)]
    if not all(isinstance(n, tirx.IntImm) for n in numbers):
        return None
    counts = [int(n.value) for n in numbers if n is not None]
    if not im2col:  # from the second dimension on, a box has one element per traversal stride
        box, steps = counts[:rank], [1, *counts[rank + 1 :]]
        counts = [-(-size // step) for size, step in zip(box, steps, strict=True)]
    return prod(counts) * int(numpy_dtype(str(dtype.value)).itemsize)
