"""The pass list: TVM's own, with our passes at four places.

Ours are in `transforms/stages.py`, TVM's in `stock.py`; it depends on the PassContext:

      -> early_passes()     functions as they are scheduled
    stock passes, up to exact buffer regions
      -> hook_passes()      blocks and regions become barriers, TMA and WGMMA instructions
    s_tir.InjectSoftwarePipeline ... s_tir.InjectDoubleBuffer
      -> late_passes()      shared buffers become one allocation with final offsets
    tirx.StorageRewrite ... tirx.SplitHostDevice, tirx.MakePackedAPI ...
      -> host_passes()      checks of the arguments, and the device that they are on

Our passes see only the functions that carry the mark of `marks.mark_requests`; every other
function of the module goes through the stock list as it is.

A prefix that ends at a stage boundary gives a right, slower kernel if the passes that realise what
is open, `stages.REALISING`, follow it (`tests/sim_kernels/test_prefixes.py`).
RejectUnloweredRequests belongs to the whole list: it refuses requests that no pass has lowered.
MergeSharedBuffers always runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import tvm
from tvm import s_tir, tirx
from tvm.ir import BaseFunc
from tvm.ir.transform import Pass, PassContext

from tvm_hopper import ir
from tvm_hopper.errors import VerifyError
from tvm_hopper.requests import marks
from tvm_hopper.requests.targets import find_processor
from tvm_hopper.transforms.prepare.lower_to_opaque_blocks import IS_OPAQUE, opaque_block_passes

from .stock import stock_passes

if TYPE_CHECKING:
    from tvm_hopper.transforms.stages import Place

# The passes that act on a processor without threads, too; the others are about those.
ON_EVERY_PROCESSOR = {
    "tvm_hopper.LowerAsyncCopies",
    "tvm_hopper.PlanRingBuffers",
    "tvm_hopper.ExpandPipeline",
    "tvm_hopper.InsertSyncs",
    "tvm_hopper.LowerChannelsToMbarriers",
    "tvm_hopper.RejectUnloweredRequests",
}
HOOK = "s_tir.InjectSoftwarePipeline"
LATE = "s_tir.InjectDoubleBuffer"  # the pass before StorageRewrite, which an option can leave out


def early_passes() -> list[Pass]:
    """List the passes that run on functions as they are scheduled, before TVM's first."""
    return _passes_at("early")


def hook_passes() -> list[Pass]:
    """List the passes that run where regions are exact and blocks still exist, in order."""
    return _passes_at("hook")


def late_passes() -> list[Pass]:
    """List the passes that run on flat buffers, before TVM could merge or alias them."""
    return _passes_at("late")


def host_passes() -> list[Pass]:
    """List the passes after all of TVM's.

    They act on both halves of functions that are ours; the last on kernels, as they are printed.
    """
    return _passes_at("host")


def _passes_at(place: Place) -> list[Pass]:
    from tvm_hopper.transforms import stages

    return stages.passes_at(place)


def final_checks() -> list[Callable[[tirx.PrimFunc, tirx.PrimFunc | None], object]]:
    """List the checks of what will be printed: each takes a kernel and the host function of it.

    They run in every build unless the option `tvm_hopper.checks` leaves them out; they raise a
    HopperError.
    """
    from tvm_hopper.static_check import require_room, require_sync

    return [
        require_room,  # what threads copy gets its slots from TVM, and the driver says nothing
        require_sync,  # what the assembler fixes without a word, and what would hang or race
    ]


# -- TVM's side, and where ours go


def names(passes: Iterable[Pass]) -> list[str]:
    """Return the names of passes, in order."""
    return [p.info.name for p in passes]


def full_list() -> list[Pass]:
    """List every pass of a build of ours, in order, under the current PassContext."""
    passes: list[Pass] = [*map(on_our_functions, early_passes())]
    num_before = len(opaque_block_passes())
    for number, p in enumerate(stock_passes()):
        if p.info.name == HOOK:
            passes += map(on_our_functions, hook_passes())
        passes.append(_once(p) if number < num_before else p)
        if p.info.name == LATE:
            passes += map(on_our_functions, late_passes())
    return [*passes, *map(on_our_functions, host_passes())]


def on_our_functions(inner: Pass) -> Pass:
    """Wrap a pass so that it sees only the functions marked as ours, where it has to act."""

    @tvm.transform.module_pass(opt_level=0, name=inner.info.name)
    def _apply(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        ours = {gv: f for gv, f in mod.functions.items() if _is_for(inner, f)}
        if not ours:
            return mod
        changed = inner(tvm.IRModule(ours, attrs=mod.attrs, global_infos=mod.global_infos))
        result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        result.update(changed)
        check_well_formed(before=ours.values(), mod=changed, after=inner.info.name)
        return result

    return _apply


def _once(inner: Pass) -> Pass:
    """Wrap a pass of TVM's so that it leaves functions that have come through it as they are."""

    @tvm.transform.module_pass(opt_level=0, name=inner.info.name)
    def _apply(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        done = {gv: f for gv, f in mod.functions.items() if f.attrs and IS_OPAQUE in f.attrs}
        if not done:
            return inner(mod)
        left = {gv: f for gv, f in mod.functions.items() if gv not in done}
        result = inner(tvm.IRModule(left, attrs=mod.attrs, global_infos=mod.global_infos))
        result.update(tvm.IRModule(done))
        return result

    return _apply


def _is_for(inner: Pass, func: BaseFunc) -> bool:
    if not marks.is_marked(func):
        return False
    processor = find_processor(func.attrs["target"])  # None: the host half of a function
    if processor is not None and not processor.has_threads:
        return inner.info.name in ON_EVERY_PROCESSOR
    return _takes_stage_of(inner.info.name, func)


def _takes_stage_of(name: str, func: BaseFunc) -> bool:
    from tvm_hopper.transforms import stages

    stage = stages.stage_of(name)
    return stage is None or stage.when is None or stage.when(func)


def verify_between_passes() -> bool:
    """Tell whether the environment requests a check after each of our passes."""
    return os.environ.get("TVM_HOPPER_VERIFY", "0") not in ("", "0")


def check_well_formed(before: Iterable[tirx.PrimFunc], mod: tvm.IRModule, after: str) -> None:
    """Refuse what a pass made, if requested and if what it was given was well formed."""
    if not verify_between_passes() or _ill_formed(before):
        return
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
