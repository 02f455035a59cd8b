"""The lowering, as a table of contents: TVM's own pass list, with ours at two places of it.

TVM's list stands in `stock_passes.py`; it depends on the PassContext:

    stock passes, up to exact buffer regions
      -> hook_passes()      blocks and regions become barriers, TMA and WGMMA instructions
    s_tir.InjectSoftwarePipeline ... s_tir.InjectDoubleBuffer
      -> late_passes()      shared buffers become one allocation with final offsets
    tirx.StorageRewrite ... tirx.SplitHostDevice, tirx.MakePackedAPI ...
      -> host_passes()      checks of the arguments, and the device that they are on

Our passes see only the functions that carry the mark of `request.mark_requests`; every other
function of the module goes through the stock list as it is.

Every prefix of hook_passes() gives a right, slower kernel if InsertSyncs and LowerChannels, which
realise what is open, follow it (`tests/sim_kernels/test_prefixes.py`). RefuseLeftovers belongs to
the whole list: it refuses what none of the passes acted on. MergeShared is always needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import tvm
from tvm import s_tir, tirx
from tvm.ir.transform import Pass, PassContext
from tvm.target import Target
from tvm.tirx.build import split_host_device_mods

from tvm_hopper import ir, request
from tvm_hopper.errors import VerifyError
from tvm_hopper.stock_passes import stock_passes

HOOK = "s_tir.InjectSoftwarePipeline"
LATE = "s_tir.InjectDoubleBuffer"  # the pass before StorageRewrite, which an option can leave out


def hook_passes() -> list[Pass]:
    """List the passes that run where regions are exact and blocks still exist, in order."""
    from tvm_hopper import transforms

    return [
        transforms.RestoreAxisNotes(),  # unification left annotations of bound loops on unit loops
        transforms.ResolveBounds(),  # the passes below read plain indices of compact buffers
        transforms.LayoutShared(),  # early: descriptors and boxes follow the panels chosen here
        transforms.LowerMma(),  # the accumulator goes to registers, rows and columns to threads
        transforms.InjectTmaLoad(),  # copies become boxes of a tensor map, without a barrier yet
        transforms.PlanPipeline(),  # loads get slots, and trips are counted
        transforms.SpecializeWarps(),  # or not: a producer, and consumers that it hands slots to
        transforms.ScheduleTiles(),  # the passes above reason about plain block indices
        transforms.ExpandPipeline(),  # where there is no producer, loads run ahead in the loop
        transforms.InsertSyncs(),  # what a role has to wait for depends on all of the above
        transforms.LowerChannels(),  # slots that are handed over become mbarriers
        transforms.WidenIndices(),  # accesses are final: large tensors are indexed by 64 bits
        transforms.RequireAlignment(),  # asks which accesses turned out wide
        transforms.RefuseLeftovers(),  # last: what no pass acted on would fall away in silence
    ]


def late_passes() -> list[Pass]:
    """List the passes that run on flat buffers, before TVM could merge or alias them."""
    from tvm_hopper import transforms

    return [
        transforms.MergeShared(),  # TVM would overlap what copies in flight still read and write
    ]


def host_passes() -> list[Pass]:
    """List the passes after all of TVM's; they act on host functions that carry our notes."""
    from tvm_hopper import transforms

    return [
        transforms.AssertAlignment(),  # a misaligned tensor is an error that names it
        transforms.CountBlocks(),  # only now is the device of a call known
    ]


def final_checks() -> list[Callable[[tirx.PrimFunc, tirx.PrimFunc | None], object]]:
    """List the checks of what will be printed: each takes a kernel and the host function of it.

    They run in every build unless the option `tvm_hopper.verify` is off, and raise a VerifyError.
    """
    from tvm_hopper.static_check import require_sync

    return [
        require_sync,  # what the assembler mends without a word, and what would hang or race
    ]


# -- TVM's side, and where ours go


def _names(passes: Iterable[Pass]) -> list[str]:
    return [p.info.name for p in passes]


def full_list() -> list[Pass]:
    """List every pass of a build of ours, in order, under the current PassContext."""
    passes: list[Pass] = []
    for p in stock_passes():
        if p.info.name == HOOK:
            passes += map(on_our_functions, hook_passes())
        passes.append(p)
        if p.info.name == LATE:
            passes += map(on_our_functions, late_passes())
    return [*passes, *map(on_our_functions, host_passes())]


def on_our_functions(inner: Pass) -> Pass:
    """Wrap a pass so that it sees only the functions marked as ours."""

    @tvm.transform.module_pass(opt_level=0, name=inner.info.name)
    def _apply(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        ours = {gv: f for gv, f in mod.functions.items() if request.is_marked(f)}
        if not ours:
            return mod
        changed = inner(tvm.IRModule(ours, attrs=mod.attrs, global_infos=mod.global_infos))
        result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        result.update(changed)
        if verify_between_passes() and not _ill_formed(ours.values()):
            _verify(changed, after=inner.info.name)
        return result

    return _apply


# -- running it


def run(mod: tvm.IRModule) -> tvm.IRModule:
    """Lower a module whose functions carry targets, as the stock pipeline would, ours included."""
    return tvm.ir.transform.Sequential(full_list())(request.mark_requests(mod))


@dataclass(frozen=True)
class Lowered:
    """The two halves of a build, finalised: exactly what the code generators print."""

    host: tvm.IRModule
    device: tvm.IRModule


def lower(
    mod: tvm.IRModule | tirx.PrimFunc,
    target: str | Target | dict | None = None,
    until: str | None = None,
    before: str | None = None,
) -> tvm.IRModule:
    """Return the module after the first pass named `until`, or right before the one named `before`.

    Names are those of `PassInfo`, e.g. "tvm_hopper.LowerMma" or "tirx.SplitHostDevice"; with
    neither the whole list runs, and host and device functions stand side by side.
    """
    mod = request.mark_requests(_bind(mod, target))
    passes = full_list()
    wanted = until or before
    if wanted is not None and wanted not in _names(passes):
        raise ValueError(f"lower: found no pass named {wanted!r}; need one of {_names(passes)}")
    for p in passes:
        if before is not None and p.info.name == before:
            break
        mod = p(mod)
        if until is not None and p.info.name == until:
            break
    return mod


def lower_to_hook(
    mod: tvm.IRModule | tirx.PrimFunc, target: str | Target | dict | None = None
) -> tvm.IRModule:
    """Return the module as the first of our passes receives it."""
    mod = request.mark_requests(_bind(mod, target))
    for p in stock_passes():
        if p.info.name == HOOK:
            break
        mod = p(mod)
    return mod


def lower_final(
    mod: tvm.IRModule | tirx.PrimFunc, target: str | Target | dict | None = None
) -> Lowered:
    """Return the finalised host and device modules, without generating code."""
    host, device = split_host_device_mods(lower(mod, target))
    finalize_host, finalize_device = stock_finalizers()
    parts = [finalize_device()(m) for m in device.values()]
    functions = {gv: f for part in parts for gv, f in part.functions.items()}
    return Lowered(finalize_host()(host), tvm.IRModule(functions))


def stock_finalizers() -> tuple[Callable[[], Pass], Callable[[], Pass]]:
    """Return the stock factories of the passes that finish the host and the device module."""
    from tvm.s_tir import pipeline as stock

    return stock.finalize_host_passes, stock.finalize_device_passes


def _bind(mod: tvm.IRModule | tirx.PrimFunc, target: str | Target | dict | None) -> tvm.IRModule:
    if isinstance(mod, tirx.PrimFunc):
        mod = tvm.IRModule.from_expr(mod)
    chosen = Target.current(allow_none=True) if target is None else Target(target)
    if chosen is None:
        raise ValueError("lower: found no target; need one as argument or a `with target:` scope")
    if chosen.host is None:
        chosen = chosen.with_host(Target("llvm" if tvm.runtime.enabled("llvm") else "c"))
    return tirx.transform.BindTarget(chosen)(mod)


# -- checks between passes


def verify_between_passes() -> bool:
    """Tell whether the environment asks for a check after each of our passes."""
    return os.environ.get("TVM_HOPPER_VERIFY", "0") not in ("", "0")


def _verify(mod: tvm.IRModule, after: str) -> None:
    for gv, func in mod.functions.items():
        error = _ill_formed([func])
        if error is not None:
            raise VerifyError(
                f"{gv.name_hint} after {after}: found IR that is not well formed "
                f"({error}); need every variable and buffer defined once, before its use"
            )


def _ill_formed(functions: Iterable[tirx.PrimFunc]) -> Exception | None:
    """Return what TVM's verifier says; its own pragmas of lowered loops do not pass it either."""
    for func in functions:
        has_blocks = bool(ir.find_all(func.body, ir.SBlock))
        analysis = s_tir.analysis if has_blocks else tirx.analysis  # TVM has a verifier for each
        try:
            analysis.verify_well_formed(func, assert_mode=True)
        except Exception as error:
            return error
    return None
