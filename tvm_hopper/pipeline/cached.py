"""Lowered modules on disk: a build that another process has done is read instead.

    lowered = remember("lowered", module, lambda: run(module)).module

The key is the module's JSON, the target and the PassContext in scope, and the versions of the code.
A result is kept if its computation gave no warning, since a warning has to come each time. Nothing
is read or kept where somebody watches the passes, or results depend on more than the key.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable
from typing import NamedTuple

import tvm
from tvm.ir.transform import Pass, PassContext
from tvm.target import Target
from tvm_ffi.serialization import from_json_graph_str

from tvm_hopper import disk_cache, errors
from tvm_hopper.codegen_patches import operators, rounded_sums
from tvm_hopper.requests import options

from .passes import verify_between_passes


class Remembered(NamedTuple):
    """A module, and the key of the computation that it is the result of, if it may be kept."""

    module: tvm.IRModule
    key: str | None = None

    def holds(self, mod: tvm.IRModule) -> bool:
        """Tell whether all functions of a module are this one's: nobody has changed one since."""
        mine = {gv.name_hint: f for gv, f in self.module.functions.items()}
        return self.key is not None and all(
            gv.name_hint in mine and f.same_as(mine[gv.name_hint])
            for gv, f in mod.functions.items()
        )


def remember(
    kind: str,
    mod: tvm.IRModule,
    compute: Callable[[], tvm.IRModule],
    *more: str,
    content: str | None = None,
    least: int = 0,
) -> Remembered:
    """Return the result of a computation on a module, from the disk where it is there.

    - `kind`: names the computation.
    - `more`: what else it depends on.
    - `content`: stands for the module; None: its JSON.
    - `least`: functions of a module that is worth it.
    - raises: what `compute` raises.
    """
    context = PassContext.current()
    is_off = disk_cache.folder() is None or len(mod.functions) < least or _has_database()
    is_watched = context.instruments or verify_between_passes()
    if is_off or is_watched or (content := content or _text_of(mod)) is None:
        return Remembered(compute())
    config = sorted((str(k), str(v)) for k, v in options.from_carrier(context.config).items())
    passes = (context.opt_level, list(context.required_pass), list(context.disabled_pass))
    where = str(Target.current(allow_none=True))
    key = disk_cache.key_of(kind, content, where, repr(config), repr(passes), *more)
    known = disk_cache.get(key)
    if known is not None:
        return Remembered(_read(known), key)
    warned = errors.num_warnings()
    result = compute()
    if errors.num_warnings() > warned:
        return Remembered(result)
    disk_cache.put(key, _written(result))
    return Remembered(result, key)


def remember_half(kind: str, mod: tvm.IRModule, whole: Remembered, finalize: Pass) -> Remembered:
    """Return a finalised half of a lowered module, from the disk where it is there.

    - `mod`: functions of `whole`; if somebody has changed one, it is finalised as it is.
    """
    if not whole.holds(mod):
        return Remembered(finalize(mod))
    names = sorted(gv.name_hint for gv in mod.functions)
    return remember(kind, mod, lambda: finalize(mod), *names, content=whole.key)


def _written(mod: tvm.IRModule) -> bytes:
    """Write a module with the operators of ours that it names; nothing where JSON cannot."""
    text = _text_of(mod)
    if text is None:
        return b""
    named = json.dumps(operators.definitions_in(text))
    return zlib.compress("\n".join([named, text]).encode(), 1)


def _read(data: bytes) -> tvm.IRModule:
    named, _, text = zlib.decompress(data).decode().partition("\n")
    rounded_sums.register()
    for name, signature, body, returns, templated in json.loads(named):
        operators.make_known(name, signature, body, returns and tuple(returns), templated)
    return from_json_graph_str(text)  # `tvm.ir.load_json` first rewrites old forms, in Python


def _has_database() -> bool:
    """Tell whether TVM's passes find tuned schedules; the module that has them is not imported."""
    module = sys.modules.get("tvm.s_tir.meta_schedule")
    return module is not None and module.Database.current() is not None


def _text_of(mod: tvm.IRModule) -> str | None:
    """Return a module as JSON; None for one that holds what JSON cannot, as built libraries."""
    try:
        return str(tvm.ir.save_json(mod))
    except (errors.HopperError, RuntimeError, TypeError, ValueError):
        return None
