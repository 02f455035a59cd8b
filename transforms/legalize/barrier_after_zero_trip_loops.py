"""Place a barrier after loops that may run zero times, which ThreadSync does not consider.

    if 0 < N[b]: ... tile[0, ...] = ...
    for k in range(N[b] - 1): ... tile[...] ...
    if 1 <= N[b]: ... tile[(N[b] + 1) % 2, ...]
  ->
    if 0 < N[b]: ... tile[0, ...] = ...
    for k in range(N[b] - 1): ... tile[...] ...
    barrier
    if 1 <= N[b]: ... tile[(N[b] + 1) % 2, ...]

TVM's ThreadSync takes every loop for one that runs: what is stored before it and read after
it then waits at a barrier in the loop alone.  A pipeline whose number of turns is known at run time
only is such a loop, and threads read what others had not stored yet.

Before: buffers are flat, pipelines apart; TVM has placed no barrier yet.  After: after a loop of
shared memory that may have no turns is a barrier, if all threads of the block come there.
Not here: kernels that we synchronise.
"""

from __future__ import annotations

import itertools
from typing import Any

import tvm_ffi
from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import fences
from tvm_hopper.transforms.kernel_pass import function_pass

Loops = dict[ir.For, tuple[str, ...]]


def plan_zero_trip_barriers(kernel: Any) -> Loops:
    """Map loops that may have no turns, and that all threads come to, to the scopes they touch."""
    axes = ir.find_all(kernel, tirx.AttrStmt, lambda x: x.attr_key == "thread_extent")
    varying = [x.node.var for x in axes if str(x.node.thread_tag).startswith("threadIdx")]
    found: Loops = {}

    def is_uniform(*exprs: Any) -> bool:
        loads = ir.find_all(list(exprs), ir.TensorLoad)
        own = [x for x in loads if x.source.scope() not in ("", "global")]
        return not own and not ir.depends_on(list(exprs), varying)

    def enter_loop(loop: ir.For, visitor: Any) -> None:
        if not is_uniform(loop.min, loop.extent):
            return
        if not sym.Analyzer().can_prove(loop.extent > 0) and (scopes := _shared_scopes(loop)):
            found[loop] = scopes
        visitor.default_visit(loop)

    def enter_branch(branch: ir.IfThenElse, visitor: Any) -> None:
        if is_uniform(branch.condition):
            visitor.default_visit(branch)

    def enter_while(loop: tirx.While, visitor: Any) -> None:
        if is_uniform(loop.condition):
            visitor.default_visit(loop)

    def note(bound: tirx.Bind, _visitor: Any) -> None:
        if not is_uniform(bound.value):
            varying.append(bound.var)

    callbacks: list[Any] = [
        *((ir.For, enter_loop), (ir.IfThenElse, enter_branch)),
        *((tirx.While, enter_while), (tirx.Bind, note)),
    ]
    tvm_ffi.structural_visit(kernel, callbacks)
    return {loop: scopes for loop, scopes in found.items() if not _meets_behind(kernel, loop)}


def _shared_scopes(loop: ir.For) -> tuple[str, ...]:
    touched = [
        *(x.source for x in ir.find_all(loop, ir.TensorLoad)),
        *(x.buffer for x in ir.find_all(loop, ir.BufferStore)),
    ]
    return tuple(sorted({str(x.scope()) for x in touched if ir.is_shared(x)}))


def _meets_behind(kernel: Any, loop: ir.For) -> bool:
    """Tell whether a barrier of ours is there already."""
    for both in ir.find_all(kernel, ir.SeqStmt):
        parts = list(both.seq)
        for part, behind in itertools.pairwise(parts):
            if part.same_as(loop) and _is_meeting(behind):
                return True
    return False


def _is_meeting(statement: ir.Stmt) -> bool:
    call = statement.value if isinstance(statement, ir.Evaluate) else None
    return isinstance(call, ir.Call) and call.op.same_as(fences.sync_threads().op)


def rewrite_zero_trip_barriers(func: tirx.PrimFunc, plan: Loops) -> tirx.PrimFunc:
    """Put a barrier after each loop."""

    def visit(loop: ir.For, mutator: Any) -> Any:
        new = mutator.default_mutate(loop)
        meetings = [fences.sync_scope(scope) for scope in plan.get(loop, ())]
        return ir.seq(new, *meetings) if meetings else new

    return func.with_body(ir.mutate(func.body, [(ir.For, visit)]))


def _meet_behind_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rewrite the kernels of one function that TVM synchronises."""
    plan: Loops = {}
    for kernel in ir.outermost_thread_extents(func.body):
        if not ir.is_ours(kernel):
            plan.update(plan_zero_trip_barriers(kernel))
    return rewrite_zero_trip_barriers(func, plan) if plan else func


BarrierAfterZeroTripLoops = function_pass("BarrierAfterZeroTripLoops", _meet_behind_loops)
