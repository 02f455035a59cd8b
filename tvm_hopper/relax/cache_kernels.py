"""Hopper kernels in place of those of TVM's paged KV cache.

    batch_decode_paged_kv(...): TVM's kernel
  ->
    batch_decode_paged_kv(...): ours, which calls the other one for what it does not compute
    batch_decode_paged_kv_of_tvm(...): TVM's kernel

The cache gets its kernels as functions of the module and calls them by position.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.frontend.nn.llm import kv_cache

from tvm_hopper import ir
from tvm_hopper.dlight.decisions import name_of
from tvm_hopper.errors import HopperError
from tvm_hopper.requests.targets import is_ours
from tvm_hopper.schedule import AttentionConfig, paged_attention
from tvm_hopper.schedule.attention.cache_arguments import DECODE, CacheArguments
from tvm_hopper.schedule.reasons import TVM_ERRORS, in_words
from tvm_hopper.transforms.launch.reject_unlowered_requests import is_function_call

from .options import ModelOptions

RULE = "PagedAttention"
OF_TVM = "_of_tvm"
MAKERS = ("_attention_prefill_ragged", "_attention_prefill", "_attention_decode")
ROUNDS = 'weights multiply values in 16 bits; need accumulate="float32"'


@dataclass(frozen=True)
class ServedKernels:
    """A module with kernels of ours, and what became of each kernel of a cache.

    - `fallbacks`: by each kernel of ours, the function that it calls for what it does not compute.
    - `refused`: by each kernel that is TVM's alone, the reason.
    """

    mod: tvm.IRModule
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def serve_cache_kernels(mod: tvm.IRModule, options: ModelOptions) -> ServedKernels:
    """Replace the kernels of paged caches of a module, as far as ours compute them.

    A kernel that has been replaced stays as it is. Without the option `accumulate` nothing is
    replaced, since weights are rounded.
    """
    functions, fallbacks, refused = dict(mod.functions_items()), {}, {}
    names = {str(x.name_hint) for x in functions}
    for gv, func in list(functions.items()):
        name = str(gv.name_hint)
        if CacheArguments.of(func) is None or _is_replaced(func) or OF_TVM in name:
            continue
        fallback = _free_name(f"{name}{OF_TVM}", names)
        made = _made(func, fallback, options)
        if isinstance(made, str):
            refused[name] = made
            continue
        names.add(fallback)
        functions[gv] = made.with_attr("global_symbol", name_of(func) or name)
        functions[tvm.ir.GlobalVar(fallback)] = func.with_attr("global_symbol", fallback)
        fallbacks[name] = fallback
    if fallbacks:
        mod = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return ServedKernels(mod, fallbacks, refused)


def _made(func: tirx.PrimFunc, fallback: str, options: ModelOptions) -> tirx.PrimFunc | str:
    """Return a kernel of ours, or why there is none."""
    args = CacheArguments.of(func)
    assert args is not None
    if options.accumulate is None:
        return ROUNDS
    one_part = options.batch_invariant and args.kind == DECODE
    try:
        return paged_attention(func, fallback, AttentionConfig(splits=1 if one_part else None))
    except HopperError as error:
        return str(error)
    except TVM_ERRORS as error:
        return f"what TVM cannot schedule{in_words(error)}"


def _is_replaced(func: tirx.PrimFunc) -> bool:
    """Tell a kernel of ours, which calls its fallback."""
    return ir.has_any(func.body, ir.Call, is_function_call)


def _free_name(name: str, taken: Iterable[str]) -> str:
    number, free = 0, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


# -- pipelines that are not ours


def wrap_makers(options: ModelOptions) -> None:
    """Let TVM's makers of cache kernels return kernels of ours, for targets of ours.

    Other pipelines, as MLC-LLM's, leave scheduled functions alone.
    """
    for name in MAKERS:
        setattr(kv_cache, name, _wrapped(getattr(kv_cache, name), options))


def unwrap_makers() -> None:
    """Undo `wrap_makers`; nothing where it was not called."""
    for name in MAKERS:
        setattr(kv_cache, name, unwrapped(name))


def unwrapped(name: str) -> Callable[..., Any]:
    """Return a maker of TVM's, whether it is wrapped or not."""
    now = getattr(kv_cache, name)
    return getattr(now, "maker_of", now)


def _wrapped(maker: Callable[..., Any], options: ModelOptions) -> Callable[..., Any]:
    @functools.wraps(maker)
    def make(*args: Any, **named: Any) -> Any:
        func = maker(*args, **named)
        target = next(x for x in (*args, *named.values()) if isinstance(x, tvm.target.Target))
        builder = relax.BlockBuilder.current()
        if builder is None or not is_ours(target) or CacheArguments.of(func) is None:
            return func
        fallback = _fallback_in(builder.get(), func)
        with target:
            made = _made(func, fallback, options)
        if isinstance(made, str):
            return func
        builder.add_func(func.with_attr("global_symbol", fallback), fallback)
        return made.with_attr("global_symbol", name_of(func))

    make.maker_of = maker  # type: ignore[attr-defined]  # how `unwrap_makers` finds it
    return make


def _fallback_in(mod: tvm.IRModule, func: tirx.PrimFunc) -> str:
    """Name a function in a module: as the one that is equal, or anew."""
    known = {str(gv.name_hint): x for gv, x in mod.functions_items()}
    name = f"{name_of(func)}{OF_TVM}"
    others = [
        x
        for x, y in known.items()
        if not tvm_ffi.structural_equal(y, func.with_attr("global_symbol", x))
    ]
    return _free_name(name, others)
