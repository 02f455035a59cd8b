"""Which functions ask for our lowering, and whether what they ask for can be read at all.

A function asks by carrying one of our keys: on a block, on a loop, or as a function attribute.
Anything under our prefix that is not a key of `keys.py` is a mistake and never passes in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import BaseFunc, StringImm
from tvm.target import Target

from tvm_hopper import ir, keys
from tvm_hopper.errors import cannot_lower

MARK = "tvm_hopper.kernel"  # set by us on a function that asked; users never write it
ARCH = "sm_90a"


@dataclass(frozen=True)
class Request:
    """One annotation or attribute under our prefix."""

    place: str  # keys.BLOCK, keys.LOOP or keys.FUNCTION
    owner: str  # name of the block or loop variable
    name: str
    value: object


def is_marked(func: BaseFunc) -> bool:
    """Tell whether `mark_requests` found that this function asks for our lowering."""
    return isinstance(func, tirx.PrimFunc) and MARK in func.attrs


def find_requests(func: tirx.PrimFunc) -> list[Request]:
    """List everything under our prefix in a function."""
    found = [
        Request(keys.FUNCTION, "function", str(name), value)
        for name, value in func.attrs.items()
        if keys.is_ours(str(name)) and name != MARK
    ]

    def collect(place: str, owner: str, annotations: object) -> None:
        for name, value in annotations.items():
            if keys.is_ours(str(name)):
                found.append(Request(place, owner, str(name), value))

    for block in ir.find_all(func.body, ir.SBlock, lambda b: bool(b.annotations)):
        collect(keys.BLOCK, block.name_hint, block.annotations)
    for loop in ir.find_all(func.body, ir.For, lambda f: bool(f.annotations)):
        collect(keys.LOOP, loop.loop_var.name, loop.annotations)
    return found


def mark_requests(mod: tvm.IRModule) -> tvm.IRModule:
    """Mark the functions that ask for our lowering, after checking that their requests are legal."""
    marked = {}
    for gv, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc) or is_marked(func):
            continue
        requests = find_requests(func)
        if not requests:
            continue
        for request in requests:
            check_request(gv.name_hint, request)
        check_target(gv.name_hint, func, requests[0])
        marked[gv] = func.with_attr(MARK, 1)
    if not marked:
        return mod
    result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    for gv, func in marked.items():
        result.update_func(gv, func)
    return result


def check_request(function: str, request: Request) -> None:
    """Refuse an unknown key, a key at the wrong place and a value of the wrong type."""
    where = f"{function}, {request.place} {request.owner}".replace("function function", "attribute")
    key = keys.KEYS.get(request.name)
    if key is None:
        near = keys.closest(request.name)
        fix = f"did you mean {near}?" if near else ""
        raise cannot_lower(where, f"unknown key {request.name}", "a key of tvm_hopper.keys", fix)
    if request.place not in key.places and not (key.option and request.place == keys.FUNCTION):
        places = " or ".join(key.places)
        raise cannot_lower(where, f"{key.name} on a {request.place}", f"it on a {places}")
    value = plain(request.value)
    need = value_need(key)
    if not value_fits(key, value):
        raise cannot_lower(where, f"{key.name} = {value!r}", need)


def value_need(key: keys.Key) -> str:
    """Say in words which values a key takes."""
    if key.legal:
        return "one of " + ", ".join(map(repr, key.legal))
    if key.length:
        return f"a list of {key.length} values of type {key.kind.__name__}"
    return f"a value of type {key.kind.__name__}"


def value_fits(key: keys.Key, value: object) -> bool:
    """Tell whether a plain Python value is legal for a key (a bool may be written 0 or 1)."""
    values = value if key.length else [value]
    if not isinstance(values, list) or (key.length and len(values) != key.length):
        return False
    kinds = (bool, int) if key.kind is bool else (key.kind,)
    return all(
        type(v) in kinds
        and (not key.legal or v in key.legal)
        and (key.kind is not bool or v in (0, 1))
        for v in values
    )


def plain(value: object) -> object:
    """Turn an annotation's value into plain Python, leaving what has no plain form as it is."""
    if isinstance(value, tirx.IntImm):
        is_bool = str(value.ty.dtype.dtype if hasattr(value, "ty") else value.dtype) == "bool"
        return bool(int(value)) if is_bool else int(value)
    if isinstance(value, StringImm):
        return str(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tvm_ffi.Array | list | tuple):
        return [plain(v) for v in value]
    return value


def check_target(function: str, func: tirx.PrimFunc, request: Request) -> None:
    """Refuse a target whose instructions are not Hopper's."""
    target = func.attrs.get("target", None)
    arch = target_arch(target)
    if arch != ARCH:
        found = f"target {target.kind.name} {arch}".rstrip() if target is not None else "no target"
        raise cannot_lower(
            f"{function}, {request.place} {request.owner}",
            f"{request.name} with {found}",
            f"a cuda target with arch {ARCH}",
            'build with target="nvidia/nvidia-h200" or take the annotation away',
        )


def target_arch(target: Target | None) -> str:
    """Return the arch of a cuda target, or an empty string."""
    if target is None or target.kind.name != "cuda":
        return ""
    return str(target.attrs.get("arch", ""))


def our_functions(mod: tvm.IRModule) -> Iterator[tirx.PrimFunc]:
    """Yield the functions that were marked."""
    return (f for f in mod.functions.values() if is_marked(f))
