"""Bind a serial loop to thread blocks, if its iterations combine only by atomic reductions.

    for bx in thread_binding(8, "blockIdx.x"):
        for part in serial(16, annotations={"tvm_hopper.across_blocks": "blockIdx.z"}):
            ... part ...
            with sblock(async_op="tma_reduce", reduce="add"): C += tile
  ->
    for part in thread_binding(16, "blockIdx.z"):
        for bx in thread_binding(8, "blockIdx.x"):
            ... part ...
            with sblock(async_op="tma_reduce"): C += tile

TVM itself binds no loop of a reduction to thread blocks: they would race.  Where the hardware
combines, each update of an element is atomic, and any order of them will do.  Of floats the last
bits of a sum then differ from run to run, which `explain` says and `tvm_hopper.deterministic`
refuses.

Before: what combines is a block of asynchronous operations (LowerAsyncCopies).  After: no
`across_blocks` and no `reduce` is left.
Not here: initial values, which a kernel before this one stores.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.keys import ACROSS_BLOCKS, ASYNC_OP, DETERMINISTIC, REDUCE
from tvm_hopper.requests.options import read
from tvm_hopper.transforms.common.explain_notes import Note, RemarkNote
from tvm_hopper.transforms.kernel_pass import map_noted

from .bind_reduction_loop_to_grid_plan import (
    Reduction,
    SharedLoop,
    check_order,
    find_reductions,
    plan_reduction_loop,
)


def rewrite_reduction_loop(kernel: ir.For, plan: tuple[SharedLoop, ...]) -> ir.For:
    """Bind the planned loops around all others, and remove the requests."""
    for shared in plan:
        # the loop itself may have been rebuilt around another one
        loops = ir.find_all(kernel, ir.For)
        (old,) = (x for x in loops if x.loop_var.same_as(shared.loop.loop_var))
        kernel = ir.replace_nodes(kernel, ir.Stmt, {old: old.body})
        own = ir.Var(old.loop_var.name, "int32")
        kernel = ir.substitute(kernel, {old.loop_var: ir.cast_like(own, old.loop_var)})
        name = ir.Var(shared.axis, "int32")
        axis = tirx.IterVar(None, name, tirx.IterVar.ThreadIndex, shared.axis)
        notes = {k: v for k, v in old.annotations.items() if k != ACROSS_BLOCKS}
        extent = ir.as_int32(old.extent)
        kernel = ir.For(own, 0, extent, ir.ForKind.THREAD_BINDING, kernel, axis, annotations=notes)
    return ir.replace(kernel, ir.SBlock, _without_request)


def _without_request(block: ir.SBlock) -> ir.SBlock:
    if REDUCE not in block.annotations or ASYNC_OP not in block.annotations:
        return block
    return ir.with_block(
        block, annotations={k: v for k, v in block.annotations.items() if k != REDUCE}
    )


def bind_reduction_loop_to_grid(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind the shared loops of one function's kernels."""
    deterministic = read(DETERMINISTIC, func)

    def bind(kernel: ir.For, notes: list[Note]) -> ir.For:
        plan = plan_reduction_loop(kernel)
        reductions = find_reductions(kernel)
        if deterministic:
            check_order(reductions)
        if reductions:
            notes += [_remark(x, plan) for x in reductions]
        after = rewrite_reduction_loop(kernel, plan) if plan or reductions else kernel
        assert not plan_reduction_loop(after), "bind_reduction_loop_to_grid left a loop behind"
        return after

    return map_noted(func, bind)


def _remark(reduction: Reduction, plan: tuple[SharedLoop, ...]) -> RemarkNote:
    """Say how elements are combined, and what that means for their bits."""
    text = f"store {reduction.block.name_hint}: combines {reduction.tensor.name} by "
    text += f"{reduction.operation} in global memory"
    for shared in plan:
        text += f", {_count(shared.loop.extent)} thread blocks of {shared.axis} each element"
    if reduction.is_ordered:
        text += (
            f"; in any order, so that the last bits of {ir.dtype_of(reduction.tensor)} sums may "
            "differ from run to run"
        )
    return RemarkNote(text)


def _count(extent: Any) -> str:
    known = ir.static_int(extent)
    return str(extent) if known is None else str(known)
