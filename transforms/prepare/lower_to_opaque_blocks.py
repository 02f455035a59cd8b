"""Bring a schedule to where our passes begin: opaque blocks with exact regions, compact buffers.

    for i in thread_binding(4, "blockIdx.x"):       for blockIdx_x in thread_binding(4):
        with sblock("A_shared"):                        with sblock("A_shared"):
            v = axis.spatial(4, i)              ->          A_shared[...] = A[blockIdx_x, ...]
            A_shared[v, ...] = A[v, ...]

`tvm.compile` runs these passes of TVM's by itself. A stage that runs alone, as InjectBulkAsyncCopy,
begins with this pass.

Before: functions with requests of ours, and with a target: of their own, or the current one.
After: these are marked as ours, and `tvm.compile` goes on from there. It does not run these passes
again, which would cut ring buffers to one slot. Other functions stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tvm
from tvm import s_tir, tirx
from tvm.ir.transform import Pass, PassContext
from tvm.target import Target

from tvm_hopper.errors import LoweringError
from tvm_hopper.requests import marks
from tvm_hopper.requests.keys import ASYNC_COPY, PREFIX

from .simplify_register_indices import SimplifyRegisterIndices


class StageRequest(Protocol):
    """What a stage requests for a module (`copies/request_copies.py`)."""

    def __call__(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Return a function with its requests."""

    def warn_if_idle(self, funcs: dict[Any, tirx.PrimFunc]) -> None:
        """Warn where there is nothing to request."""

    def explained(self, error: LoweringError) -> LoweringError:
        """Return an error about a request, with who has written it."""


IS_OPAQUE = "has_opaque_blocks"  # attribute of a function that has come through


def opaque_block_passes() -> list[Pass]:
    """List TVM's passes up to opaque blocks with exact regions, as `tvm.s_tir.pipeline` does."""
    return [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerCrossThreadReduction(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LiftThreadBinding(),
        s_tir.transform.ManifestSharedMemoryLocalStage(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerAutoCopy(),
        s_tir.transform.UnifyThreadBinding(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.InjectPermutedLayout(),
        s_tir.transform.AnnotateIrregularLoop(),
    ]


def LowerToOpaqueBlocks() -> Pass:
    """Return the pass tvm_hopper.LowerToOpaqueBlocks."""
    return stage_pass("LowerToOpaqueBlocks", ())


def stage_pass(
    name: str,
    passes: Sequence[Callable[[], Pass]],
    request: StageRequest | None = None,
) -> Pass:
    """Return a pass that runs others in order, on a schedule or after another stage.

    - `name`: of the pass, without the prefix.
    - `passes`: makers of the passes. They see the functions that carry our mark.
    - `request`: writes requests into each function, before anything else.
    """

    def apply(mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        plain = {x: f for x, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
        if request is None:
            return _run(mod, plain, passes)
        funcs = {x: request(f) for x, f in plain.items()}
        request.warn_if_idle(funcs)
        try:
            return _run(mod, funcs, passes)
        except LoweringError as error:
            wrote = not all(f.same_as(plain[x]) for x, f in funcs.items())
            told = wrote and ASYNC_COPY in str(error)
            raise (request.explained(error) if told else error) from None

    made: Pass = tvm.transform.module_pass(apply, opt_level=0, name=PREFIX + name)
    return made


def _run(
    mod: tvm.IRModule,
    funcs: dict[tvm.ir.GlobalVar, tirx.PrimFunc],
    passes: Sequence[Callable[[], Pass]],
) -> tvm.IRModule:
    """Bring functions of a module to opaque blocks, then run the passes on those that are ours."""
    scheduled = {
        x: _with_target(f)
        for x, f in funcs.items()
        if not marks.is_marked(f) and marks.find_requests(f)
    }
    lowered = marks.mark_requests(_module(mod, scheduled))
    for step in (SimplifyRegisterIndices(), *opaque_block_passes()) if scheduled else ():
        lowered = step(lowered)
    lowered = _module(mod, {x: f.with_attr(IS_OPAQUE, 1) for x, f in lowered.functions.items()})
    marked = {x: f for x, f in funcs.items() if marks.is_marked(f)}
    ours = _module(mod, {**marked, **dict(lowered.functions.items())})
    for make in passes if ours.functions else ():
        ours = make()(ours)
    result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    result.update(ours)
    return result


def _module(mod: tvm.IRModule, funcs: dict[tvm.ir.GlobalVar, tirx.PrimFunc]) -> tvm.IRModule:
    return tvm.IRModule(funcs, attrs=mod.attrs, global_infos=mod.global_infos)


def _with_target(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function with the current target, and a host, where it has none."""
    target = func.attrs.get("target", None) or Target.current(allow_none=True)
    if target is None:
        return func
    if target.host is None:
        target = Target(target, host="llvm")
    return func.with_attr("target", target)
