"""Find the functions that request our lowering, and check their annotations.

A function asks by carrying one of our keys: on a block, on a loop, or as a function attribute.
Unknown keys with our prefix are errors, and so are keys that look like misspelt ones of ours
(`spelling.claims_to_be_ours`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import BaseFunc
from tvm.target import Target

from tvm_hopper import ir
from tvm_hopper.errors import LoweringError, cannot_lower, warn
from tvm_hopper.facts.arch import ARCHS
from tvm_hopper.facts.async_ops import ASYNC_OPS
from tvm_hopper.facts.hexagon import HEXAGONS
from tvm_hopper.requests import async_scopes, keys, options, spelling, stock
from tvm_hopper.requests.axis_notes import set_notes_apart
from tvm_hopper.requests.targets import find_processor, name_target

PRODUCTS = {keys.WGMMA, keys.MMA_SYNC}
LEFT = "left_to_tvm"  # on a function that an option requested and the lowering refused
OURS = "tvm_hopper"  # target key, set by us on a function that asked; its two halves inherit it
_PARTNERS = {  # a key that says how: the keys that say what, without which it changes nothing
    **dict.fromkeys(keys.COPY_OPTIONS, (keys.ASYNC_COPY,)),
    keys.ACCUMULATE: (keys.WGMMA,),
    **dict.fromkeys(
        (keys.CONSUMERS, keys.REGISTERS, keys.WGMMA_PENDING, keys.IN_ORDER), (keys.STAGE,)
    ),
    **dict.fromkeys((keys.BLOCKS_PER_SM, keys.ROW_CLUSTER), (keys.MEMORY_BOUND,)),
    keys.CHOSEN: (keys.MEMORY_BOUND, keys.WGMMA),
}
_INSTEAD = {  # a key, another one that excludes it, and what is meant there
    keys.LOAD_HINT: (keys.ASYNC_COPY, keys.CACHE_HINT),
    keys.EARLY_LOADS: (keys.ASYNC_COPY, "loads to registers"),
}


@dataclass(frozen=True)
class Request:
    """One annotation or attribute under our prefix."""

    place: str  # keys.BLOCK, keys.LOOP or keys.FUNCTION
    owner: str  # name of the block or loop variable
    name: str
    value: object
    axis: str = ""  # thread axis that the loop is bound to
    neighbors: frozenset[str] = frozenset()  # every annotation of the same block or loop
    reads: bool = True  # whether a block reads global memory
    numbers: str = ""  # the block whose elements a loop numbers


def is_marked(func: BaseFunc) -> bool:
    """Tell whether `mark_requests` found that this function, or the one it came from, is ours."""
    target = func.attrs.get("target", None) if isinstance(func, tirx.PrimFunc) else None
    return target is not None and OURS in target.keys


def find_requests(func: tirx.PrimFunc) -> list[Request]:
    """List everything under our prefix in a function, and what is written as if it were.

    Where a function carries something that is surely meant for us, a key that only may be counts
    as well.
    """
    every = _annotations(func)
    ours = [r for r in every if spelling.claims_to_be_ours(r.name)]
    return [r for r in every if spelling.claims_to_be_ours(r.name, beside_ours=bool(ours))]


def _annotations(func: tirx.PrimFunc) -> list[Request]:
    """List every attribute and annotation of a function."""
    requests = [
        Request(keys.FUNCTION, "attribute", str(name), value) for name, value in func.attrs.items()
    ]

    def collect(place: str, owner: str, annotations: Mapping[str, object], **more: Any) -> None:
        neighbors = frozenset(map(str, annotations))
        for name, value in annotations.items():
            requests.append(Request(place, owner, str(name), value, neighbors=neighbors, **more))

    for block in ir.find_all(func.body, ir.SBlock, lambda b: bool(b.annotations)):
        reads = ir.has_any(block, ir.TensorLoad, lambda x: str(x.source.scope()) in ("", "global"))
        collect(keys.BLOCK, block.name_hint, block.annotations, reads=reads)
    products = ir.find_all(func.body, ir.SBlock, lambda b: not PRODUCTS.isdisjoint(b.annotations))
    for loop in ir.find_all(func.body, ir.For, lambda f: bool(f.annotations)):
        bound = loop.thread_binding
        axis = str(bound.thread_tag) if bound is not None else ""
        numbers = _numbered_block(loop, products)
        collect(keys.LOOP, loop.loop_var.name, loop.annotations, axis=axis, numbers=numbers)
    return requests


def _numbered_block(loop: ir.For, products: list[ir.SBlock]) -> str:
    """Name the product that a loop is inside of, or the one block whose elements it numbers."""
    owner = next((x for x in products if ir.uses_node(x, loop)), None)
    realize = ir.loop_nest(loop)[1]
    store = realize.block.body if isinstance(realize, ir.SBlockRealize) else None
    if owner is None and isinstance(store, ir.BufferStore):
        pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
        spatial = [value for x, value in pairs if x.iter_type == tirx.IterVar.DataPar]
        owner = realize.block if ir.uses(spatial, loop.loop_var) else None
    return "" if owner is None else str(owner.name_hint)


def mark_requests(mod: tvm.IRModule) -> tvm.IRModule:
    """Mark the functions that request our lowering, after checking what they request.

    Where an option asks and nothing in a function's asynchronous stages is a copy, the function
    stays TVM's own with synchronous ones.

    The mark is a key of the function's target and of that target's host, so kernel and host part
    inherit it when they are split.  It also makes TVM compile our kernels in a separate module.
    """
    marked = {}
    for gv, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc) or is_marked(func) or LEFT in func.attrs:
            continue
        requests = find_requests(func)
        option = async_option(func) if not requests else ""
        if option:
            asking = async_scopes.ask_for_copies(func, option)
            if asking is not None and not options.read(keys.STRICT, func):
                asking = async_scopes.without_padding(asking)
            if asking is None and _has_threads(func):
                if options.read(keys.STRICT, func):
                    raise cannot_lower(
                        f"{gv.name_hint}, {keys.ASYNC_COPY}",
                        "asynchronous stages without a copy into shared memory",
                        "one for hardware to make: stores alone ask for no kernel of this package",
                        f"request it by {keys.ASYNC_COPY} on a copy's block, or remove the stages",
                    )
                marked[gv] = async_scopes.without_empty_stages(func)
            if asking is None or not _is_for(func, option) or not _serves(gv.name_hint, asking):
                continue
            func, requests = asking, [_option_request(option)]
        if not requests:
            continue
        for request in requests:
            check_request(gv.name_hint, request)
        func = _ask_by_attribute(gv.name_hint, func, requests)
        func, requests = _choose_the_only(func, requests)
        check_target(gv.name_hint, func, requests)
        stock.check_function(gv.name_hint, func)
        func = set_notes_apart(func)
        marked[gv] = func.with_attr("target", _with_key(func.attrs["target"]))
    if not marked:
        return mod
    result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    for gv, func in marked.items():
        result.update_func(gv, func)
    return result


def _is_for(func: tirx.PrimFunc, option: str) -> bool:
    """Tell whether a processor without threads has the mechanism of an option for all functions."""
    processor = find_processor(func.attrs.get("target", None))
    if processor is None or processor.has_threads:
        return True
    return option in {ASYNC_OPS[op].mechanism for op in processor.async_ops}


def _has_threads(func: tirx.PrimFunc) -> bool:
    processor = find_processor(func.attrs.get("target", None))
    return processor is not None and processor.has_threads


def _serves(name: str, func: tirx.PrimFunc) -> bool:
    """Tell whether what a function asks of TVM next to its copies is ours to give.

    The function itself has no request: if the option cannot serve it, it stays TVM's, and that
    is said.
    """
    try:
        stock.check_function(name, func)
    except LoweringError as error:
        if options.read(keys.STRICT, func):
            raise
        warn_of(error)
        return False
    return True


def warn_of(error: LoweringError) -> None:
    """Say why a function stays TVM's own that an option requests."""
    warn(f"{keys.ASYNC_COPY} leaves a function to TVM: {error}", stacklevel=2)


def _ask_by_attribute(name: str, func: tirx.PrimFunc, requests: list[Request]) -> tirx.PrimFunc:
    """Let the copies of a function that requests all of them at once ask by themselves."""
    asking = [x for x in requests if x.name == keys.ASYNC_COPY]
    whole = next((x for x in asking if x.place == keys.FUNCTION), None)
    if whole is None or len(asking) > 1 or whole.owner == "PassContext":
        return func
    found = async_scopes.ask_for_copies(func, str(whole.value))
    if found is None:
        raise cannot_lower(
            _where(name, whole),
            f"{keys.ASYNC_COPY} without a copy into shared memory in an asynchronous stage",
            f"a loop with {keys.ASYNC_STAGES} around copies, or {keys.ASYNC_COPY} on the block of "
            "each copy",
            "annotate them (schedule.async_copy)",
        )
    return found


def _choose_the_only(
    func: tirx.PrimFunc, requests: list[Request]
) -> tuple[tirx.PrimFunc, list[Request]]:
    """Let "auto" be the one mechanism of a processor without threads, on which there is no other.

    A kernel's copies are chosen for by SelectCopyMechanisms, in sight of its threads.
    """
    processor = find_processor(func.attrs.get("target", None))
    if processor is None or processor.has_threads:
        return func, requests
    (only,) = {str(ASYNC_OPS[op].mechanism) for op in processor.async_ops}

    def choose(block: ir.SBlock) -> ir.SBlock:
        if str(block.annotations.get(keys.ASYNC_COPY, "")) != keys.AUTO:
            return block
        return ir.with_block(block, annotations={**block.annotations, keys.ASYNC_COPY: only})

    chosen = [
        replace(x, value=only) if (x.name, x.value) == (keys.ASYNC_COPY, keys.AUTO) else x
        for x in requests
    ]
    return func.with_body(ir.replace(func.body, ir.SBlock, choose)), chosen


def _option_request(mechanism: str) -> Request:
    return Request(keys.FUNCTION, "PassContext", keys.ASYNC_COPY, mechanism)


def may_stay_stock(func: tirx.PrimFunc) -> bool:
    """Tell a function that carries no request, and whose copies the option leaves open how."""
    return not find_requests(func) and async_option(func) == keys.AUTO


def async_option(func: tirx.PrimFunc) -> str:
    """Return the mechanism that the PassContext requests where copies are asynchronous."""
    mechanism = str(options.read(keys.ASYNC_COPY))
    return mechanism if mechanism and async_scopes.is_asynchronous(func) else ""


def _with_key(target: Target) -> Target:
    config = {**target.export(), "keys": [*target.keys, OURS]}
    if target.host is not None:
        config["host"] = _with_key(target.host).export()
    return Target(config)


def check_request(function: str, request: Request) -> None:
    """Refuse an unknown key, a key at the wrong place and a value of the wrong type."""
    where = _where(function, request)
    key = keys.KEYS.get(request.name)
    if key is None:
        near = spelling.closest(request.name)
        fix = f"did you mean {near}?" if near else ""
        if near == keys.FAST_MATH:
            fix = f'take TVM\'s own: PassContext(config={{"{near}": True}})'
        raise cannot_lower(where, f"unknown key {request.name}", "a key of tvm_hopper.keys", fix)
    if request.place not in key.places and not (key.option and request.place == keys.FUNCTION):
        places = " or ".join(key.places)
        raise cannot_lower(where, f"{key.name} on a {request.place}", f"it on a {places}")
    if key.axis and request.place == keys.LOOP and request.axis != key.axis:
        found = f"{key.name} on a loop bound to {request.axis or 'no thread axis'}"
        raise cannot_lower(where, found, f"it on the loop bound to {key.axis}")
    value = options.plain(request.value)
    if not options.value_fits(key, value):
        raise cannot_lower(where, f"{key.name} = {value!r}", options.value_need(key))
    partners = _PARTNERS.get(request.name, ())
    if partners and request.place != keys.FUNCTION and not request.neighbors & {*partners}:
        found = f"{key.name} without {' or '.join(partners)}"
        raise cannot_lower(where, found, f"both on the same {request.place}")
    _check_surroundings(where, key, request)


def _check_surroundings(where: str, key: keys.Key, request: Request) -> None:
    """Refuse a key next to one that excludes it, of nothing, and on a loop that is no loop."""
    other, instead = _INSTEAD.get(request.name, ("", ""))
    if other in request.neighbors:
        raise cannot_lower(where, f"{key.name} next to {other}", f"{instead} there")
    if request.name == keys.EARLY_LOADS and not request.reads:
        raise cannot_lower(where, f"{key.name} of nothing in global memory", "a load from there")
    if not key.axis and request.place == keys.LOOP and request.axis:
        found = f"{key.name} on a loop bound to {request.axis}"
        raise cannot_lower(where, found, "it on a serial loop")
    if request.numbers and not key.axis and request.name not in _PARTNERS:
        found = f"{key.name} on a loop over the elements of block {request.numbers}"
        raise cannot_lower(where, found, "it on a loop over a sum, or around several blocks")


def _where(function: str, request: Request) -> str:
    if request.place == keys.FUNCTION:
        return f"{function}, {request.owner}"
    return f"{function}, {request.place} {request.owner}"


def check_target(function: str, func: tirx.PrimFunc, requests: list[Request]) -> None:
    """Refuse a target of which nothing is known, and what one without threads cannot do."""
    target = func.attrs.get("target", None)
    processor = find_processor(target)
    if processor is None:
        found = f"target {name_target(target)}" if target is not None else "no target"
        need = f"a cuda target with arch {' or '.join(sorted(ARCHS, reverse=True))}"
        if target is not None and target.kind.name == "hexagon":
            need = f"a hexagon target with mcpu {' or '.join(HEXAGONS)}"
        raise cannot_lower(
            _where(function, requests[0]),
            f"{requests[0].name} with {found}",
            need,
            'build with target="nvidia/nvidia-h200" or remove the annotation',
        )
    if processor.has_threads:
        check_host(function, target)
        return
    able = sorted({ASYNC_OPS[op].mechanism or op for op in processor.async_ops})
    for request in requests:
        if request.name != keys.ASYNC_COPY or request.value not in able:
            raise cannot_lower(
                _where(function, request),
                f"{request.name} = {options.plain(request.value)!r} on {processor.name}",
                f"{keys.ASYNC_COPY} = {' or '.join(map(repr, able))} alone",
                "remove it, or build for a GPU",
            )
    if threads := ir.kernels(func):
        raise cannot_lower(
            f"{function}, loop {threads[0].loop_var.name}",
            f"a loop bound to {threads[0].thread_binding.thread_tag} on {processor.name}",
            "serial loops: one thread runs the whole function",
            "leave the loop unbound",
        )


def check_host(function: str, target: Target) -> None:
    """Refuse a host that cannot hold a tensor map: only LLVM's code generator knows the type."""
    host = target.host
    if host is not None and host.kind.name != "llvm":
        raise cannot_lower(
            function,
            f"host target {host.kind.name}",
            "llvm: tensor maps are encoded on the host",
            "leave the host out of the target",
        )
