"""Lower a module with the pass list, as a whole or up to a pass."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm
from tvm import s_tir, tirx
from tvm.ir.transform import Pass
from tvm.target import Target
from tvm.tirx.build import split_host_device_mods

from tvm_hopper.errors import HopperError, LoweringError, cannot_lower
from tvm_hopper.requests import keys, marks, options
from tvm_hopper.requests.async_stores import withdraw_stores

from .passes import HOOK, full_list, names
from .stock import stock_passes

Scheduled: TypeAlias = tvm.IRModule | tirx.PrimFunc | s_tir.Schedule


def run(mod: tvm.IRModule) -> tvm.IRModule:
    """Lower a module whose functions carry targets, as the stock pipeline would, ours included."""
    return run_passes(full_list(), marks.mark_requests(mod))


def run_passes(passes: Iterable[Pass], mod: tvm.IRModule) -> tvm.IRModule:
    """Run passes one after another; what TVM's own fail on is one error that names them."""
    for p in passes:
        try:
            mod = p(mod)
        except HopperError:
            raise
        except Exception as error:
            if p.info.name.startswith(keys.PREFIX):
                raise
            raise cannot_lower(
                f"functions {', '.join(_failing(p, mod))}",
                f"that TVM's own pass {p.info.name} fails ({_last_words(error)})",
                "a schedule that it takes",
                "simplify the conditions and indices of its blocks",
            ) from error
    return mod


def _last_words(error: Exception) -> str:
    """Return what TVM says at last, in front of the function: of a check what it says about it."""
    lines = str(error).partition("\nError in pass: ")[0].strip().splitlines()
    said = lines[-1] if lines else ""
    check, colon, words = said.rpartition(": ")
    return words if colon and words and "Check failed" in check else said


def _failing(p: Pass, mod: tvm.IRModule) -> list[str]:
    """Return the names of the functions that a pass fails on alone; of all, if there are none."""
    found = []
    for gv, func in mod.functions.items():
        try:
            p(tvm.IRModule({gv: func}))
        except Exception:
            found.append(str(gv.name_hint))
    return found or [str(gv.name_hint) for gv in mod.functions]


def leave_refused(mod: tvm.IRModule, error: LoweringError) -> tvm.IRModule:
    """Mark a module again after a pass has refused something of it.

    - `mod`: as it came; its functions carry targets.
    - `error`: what the pass said.
    - returns: what is refused of a function that an option alone requests, by whatever mechanism,
      leaves it to TVM, with a warning; if it was no more than copies to global memory, these to
      threads.
    - raises LoweringError: `error`, where a function or an option requests what is refused by name,
      or under `tvm_hopper.strict`.
    """
    marked = marks.mark_requests(mod)
    left = {}
    for gv, func in marked.functions.items():
        if not marks.is_marked(func) or not marks.may_stay_stock(mod[gv]):
            continue
        plain = withdraw_stores(func)
        reason = _reason_against(gv, func)
        if reason is not None and not plain.same_as(func):
            reason, left[gv] = _reason_against(gv, plain), plain
        if reason is None:
            continue
        if options.read(keys.STRICT, func):
            raise reason
        marks.warn_of(reason)
        left[gv] = mod[gv].with_attr(marks.LEFT, True)
    if not left:
        raise error
    result = tvm.IRModule(marked.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    for gv, func in left.items():
        result.update_func(gv, func)
    return result


def _reason_against(gv: tvm.ir.GlobalVar, func: tirx.PrimFunc) -> LoweringError | None:
    """Return what a pass says against a function, None where each one serves it."""
    try:
        run_passes(full_list(), tvm.IRModule({gv: func}))
    except LoweringError as reason:
        return reason
    return None


@dataclass(frozen=True)
class Lowered:
    """The final host and device modules, exactly as the code generators print them."""

    host: tvm.IRModule
    device: tvm.IRModule


def lower(
    mod: Scheduled,
    target: str | Target | dict[Any, Any] | None = None,
    until: str | None = None,
    before: str | None = None,
) -> tvm.IRModule:
    """Return the module after the first pass named `until`, or right before the one named `before`.

    Parameters
    ----------
    mod : IRModule, PrimFunc or Schedule
        A scheduled module; it is not changed.
    target : Target, str or dict, optional
        None: the one in scope.
    until, before : str, optional
        Names of passes, e.g. "tvm_hopper.LowerWgmma" or "tirx.SplitHostDevice". Without both, the
        whole list runs, and the module has host and device functions.

    Returns
    -------
    mod : IRModule

    Raises
    ------
    ValueError
        There is no target, or no pass of that name.
    HopperError
        A pass refuses what the module requests.
    """
    bound = _bind(mod, target)
    passes = full_list()
    wanted = until or before
    if wanted is not None:
        if wanted not in (known := names(passes)):
            near = [x for x in known if x.endswith(f".{wanted}")]
            near = near or difflib.get_close_matches(str(wanted), known, n=1)
            fix = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"lower: found no pass named {wanted!r}; need one of {known}{fix}")
        place = names(passes).index(wanted)
        passes = passes[: place if before is not None else place + 1]
    try:
        return run_passes(passes, marks.mark_requests(bound))
    except LoweringError as error:
        return run_passes(passes, leave_refused(bound, error))


def lower_to_hook(
    mod: Scheduled, target: str | Target | dict[Any, Any] | None = None
) -> tvm.IRModule:
    """Return the module as the first of our passes receives it.

    Parameters
    ----------
    mod : IRModule, PrimFunc or Schedule
        A scheduled module; it is not changed.
    target : Target, str or dict, optional
        None: the one in scope.

    Returns
    -------
    mod : IRModule

    Raises
    ------
    ValueError
        There is no target.
    HopperError
        An annotation of the module is illegal.
    """
    mod = marks.mark_requests(_bind(mod, target))
    for p in stock_passes():
        if p.info.name == HOOK:
            break
        mod = p(mod)
    return mod


def lower_final(mod: Scheduled, target: str | Target | dict[Any, Any] | None = None) -> Lowered:
    """Return the finalised host and device modules, without generating code.

    Parameters
    ----------
    mod : IRModule, PrimFunc or Schedule
        A scheduled module; it is not changed.
    target : Target, str or dict, optional
        None: the one in scope.

    Returns
    -------
    lowered : Lowered
        `host` and `device`, as the code generators print them.

    Raises
    ------
    ValueError
        There is no target.
    HopperError
        A pass refuses what the module requests.
    """
    host, device = split_host_device_mods(lower(mod, target))
    finalize_host, finalize_device = stock_finalizers()
    parts = [finalize_device()(m) for m in device.values()]
    functions = {gv: f for part in parts for gv, f in part.functions.items()}
    return Lowered(finalize_host()(host), tvm.IRModule(functions))


def stock_finalizers() -> tuple[Callable[[], Pass], Callable[[], Pass]]:
    """Return the stock factories of the passes that finish the host and the device module."""
    from tvm.s_tir import pipeline as stock

    return stock.finalize_host_passes, stock.finalize_device_passes


def _bind(mod: Scheduled, target: str | Target | dict[Any, Any] | None) -> tvm.IRModule:
    if isinstance(mod, s_tir.Schedule):
        mod = mod.mod
    if isinstance(mod, tirx.PrimFunc):
        mod = tvm.IRModule.from_expr(mod)
    chosen = Target.current(allow_none=True) if target is None else Target(target)
    if chosen is None:
        raise ValueError("lower: found no target; need one as argument or a `with target:` scope")
    if chosen.host is None:
        chosen = chosen.with_host(Target("llvm" if tvm.runtime.enabled("llvm") else "c"))
    return tirx.transform.BindTarget(chosen)(mod)
