"""Leave pipelines whose copies the threads make to TVM's own pass.

    for k in serial(8, annotations={"software_pipeline_stage": [1, 3, 3],
                                    "software_pipeline_async_stages": [1]}):
  ->
    for k in serial(8, annotations={"software_pipeline_stage": [0, 2, 2]}):

Stages say who runs how far ahead of whom, so that their least may be any; TVM counts them from 0.
None of them is asynchronous: what threads load and store is there when they meet. TVM would commit
empty groups, and wait for a number of them that is no constant in a loop of unknown extent. A
pipeline inside of one may be named once, as where hardware copies: TVM expands it first, to three
statements.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests.keys import ASYNC_COPY, ASYNC_STAGES, ORDER, STAGE
from tvm_hopper.transforms.common.stage_annotations import PipelineStages, parts_of, read_stages

PIECES = 3  # of an expanded pipeline: what runs ahead, the loop, the rest


def with_plain_stages(kernel: ir.For) -> ir.For:
    """Count the stages of pipelines without copies by hardware from 0, none asynchronous."""

    def count(loop: ir.For, mutator: Any) -> ir.For:
        new = mutator.default_mutate(loop)
        if STAGE not in loop.annotations or ir.find_blocks(loop, ASYNC_COPY):
            return new
        parts = parts_of(loop)
        pieces = [PIECES if _is_pipeline(x) else 1 for x in parts]
        stages, order = [int(x) for x in loop.annotations[STAGE]], None
        if len(stages) != sum(pieces):  # else as TVM counts them
            plan = read_stages(loop, parts)
            _check(plan)
            _check_slots(plan, loop)
            stages, order = _spread(plan, pieces)
        elif len(parts) == sum(pieces):
            plan = read_stages(loop, parts)
            _check(plan)
            _check_slots(plan, loop)
        new = _for_all_threads(new)
        first = min(stages, default=0)
        if not first and order is None and ASYNC_STAGES not in loop.annotations:
            return new
        notes = {k: v for k, v in loop.annotations.items() if k != ASYNC_STAGES}
        notes[STAGE] = [x - first for x in stages]
        if order is not None:
            notes[ORDER] = order
        return ir.with_body(new, new.body, annotations=notes)

    return ir.mutate(kernel, [(ir.For, count)])


def _for_all_threads(loop: ir.For) -> ir.For:
    """Say of each statement that it touches whole arrays of shared memory.

    TVM gives an array slots where what is read may be what is written, by one thread: of `tile[tx]`
    and `tile[127 - tx]` it finds that they are never the same.
    """
    wrapped = {}
    for part in parts_of(loop):
        shared = [x for x in _touched(part) if ir.is_shared(x)]
        if not shared or _is_pipeline(part) or ir.find_all(part, ir.Call, _has_pointer):
            continue
        regions = {
            kind: [ir.full_region(x) for x in ir.once(found)]
            for kind, found in (("reads", _read(part)), ("writes", _written(part)))
        }
        if isinstance(part, ir.SBlockRealize) and ir.is_const(part.predicate, 1):
            block = ir.with_block(part.block, **regions)
            if tvm_ffi.structural_equal(block, part.block):
                continue
            wrapped[part] = ir.SBlockRealize(part.iter_values, part.predicate, block)
        else:
            wrapped[part] = ir.opaque_block("part", part, **regions)
    return ir.with_body(loop, ir.replace_nodes(loop.body, ir.Stmt, wrapped)) if wrapped else loop


def _read(part: ir.Stmt) -> list[ir.Var]:
    return [x.source for x in ir.find_all(part, ir.TensorLoad)]


def _written(part: ir.Stmt) -> list[ir.Var]:
    return [x.buffer for x in ir.find_all(part, ir.BufferStore)]


def _touched(part: ir.Stmt) -> list[ir.Var]:
    return [*_read(part), *_written(part)]


def _has_pointer(call: ir.Call) -> bool:
    return ir.pointer_of(call) is not None


def _is_pipeline(part: ir.Stmt) -> bool:
    return isinstance(part, ir.For) and STAGE in part.annotations


def _spread(plan: PipelineStages, pieces: list[int]) -> tuple[list[int], list[int]]:
    """Name a pipeline as often as TVM's pass does, which expands it first."""
    stages = [x for x, n in zip(plan.stages, pieces, strict=True) for _ in range(n)]
    turns = sorted(range(len(pieces)), key=lambda i: plan.order[i])
    starts = {i: sum(pieces[x] for x in turns[: turns.index(i)]) for i in turns}
    return stages, [starts[i] + k for i, n in enumerate(pieces) for k in range(n)]


def _check(plan: PipelineStages) -> None:
    """Refuse statements that would read before what they read is written, as TVM does."""
    turns = list(zip(plan.stages, plan.order, strict=True))
    for i, writer in enumerate(plan.parts):
        written = ir.once([x.buffer for x in ir.find_all(writer, ir.BufferStore)])
        for j in range(i + 1, len(plan.parts)):
            loads = ir.find_all(plan.parts[j], ir.TensorLoad)
            read = [x for x in written if any(load.source.same_as(x) for load in loads)]
            if read and turns[j] < turns[i]:
                raise cannot_lower(
                    plan.where,
                    f"{STAGE} = {list(plan.stages)} and {ORDER} = {list(plan.order)}",
                    f"statement {j}, which reads {read[0].name}, after statement {i}, which "
                    "writes it: a later stage, or later in the same one",
                    "e.g. stages that do not decrease, in program order",
                )


def _check_slots(plan: PipelineStages, loop: ir.For) -> None:
    """Refuse what runs ahead through an array that TVM's pass gives no slots, and says nothing.

    It gives them to arrays of the loop's own block alone; others are used outside of it, too.
    """
    own = list(loop.body.block.alloc_buffers) if isinstance(loop.body, ir.SBlockRealize) else []
    for i, writer in enumerate(plan.parts):
        for store in ir.find_all(writer, ir.BufferStore):
            tile = store.buffer
            if any(tile.same_as(x) for x in own) or ir.uses(list(store.indices), loop.loop_var):
                continue
            late = [
                j
                for j, part in enumerate(plan.parts)
                if plan.stages[j] > plan.stages[i] and ir.accesses(part, tile)
            ]
            if late:
                raise cannot_lower(
                    plan.where,
                    f"{STAGE} = {list(plan.stages)} and {tile.name}, which is used outside of the "
                    "loop, too",
                    f"an array that only the loop uses between statements {i} and {late[0]}: it "
                    f"gets a "
                    "slot for each iteration that one runs ahead of the other",
                    f"use a separate tile in each loop, or remove {STAGE}",
                )
