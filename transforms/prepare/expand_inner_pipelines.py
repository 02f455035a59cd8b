"""Expand pipelines inside of a pipelined loop, before the statements of that one are counted.

    for k in serial(8, annotations={"software_pipeline_stage": [0, 2, 3, 3], ...}):
        copy(tile, A)
        for j in serial(4, annotations={"software_pipeline_stage": [0, 1], ...}):
            fragment = alloc(warp)
            load(fragment, tile, j)
            multiply(acc, fragment)
  ->
    for k in serial(8, annotations={"software_pipeline_stage": [0, 2, 3, 3], ...}):
        fragments = alloc(2, warp)
        copy(tile, A)
        with sblock(): load(fragments[0], tile, 0)
        with sblock():
            for j in serial(3):
                load(fragments[(j + 1) % 2], tile, j + 1)
                multiply(acc, fragments[j % 2])
        with sblock(): multiply(acc, fragments[1])

As TVM counts them: the first iterations of an inner pipeline, its loop and its last iterations are
statements of the outer one. An outer loop that has one entry for all of them (`hs.pipeline`, which
is asked before or after) means each. What holds no asynchronous copy is expanded by TVM's own pass.

Before: blocks are opaque.  After: no pipelined loop is inside of another one, unless it holds
asynchronous copies.
Not here: the loops that copies run ahead in (plan_ring_buffers.py, expand_pipeline.py).
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.ir import IRModule

from tvm_hopper import ir
from tvm_hopper.requests.keys import ASYNC_COPY, ORDER, PIPELINE_KEYS, STAGE
from tvm_hopper.transforms.kernel_pass import planned_pass

_ASIDE = "tvm_hopper.aside."  # prefix of the keys of loops that TVM's pass is to leave alone


def plan_inner(func: tirx.PrimFunc) -> tuple[ir.For, ...]:
    """Return the pipelined loops that are to be expanded: those inside of others without copies."""
    pipelined = ir.find_all(func.body, ir.For, lambda x: STAGE in x.annotations)
    return tuple(
        loop
        for loop in pipelined
        if not ir.find_blocks(loop, ASYNC_COPY)
        and any(
            not outer.same_as(loop)
            and ir.uses_node(outer.body, loop)
            and ir.find_blocks(outer, ASYNC_COPY)
            for outer in pipelined
        )
    )


def rewrite_inner(func: tirx.PrimFunc, plan: tuple[ir.For, ...]) -> tirx.PrimFunc:
    """Let TVM's pass expand these loops and no others, and join what it made to the statements."""

    def aside(loop: ir.For, mutator: Any) -> ir.For:
        new = mutator.default_mutate(loop)
        if STAGE not in loop.annotations or any(loop.same_as(x) for x in plan):
            return new
        notes = {_ASIDE * (k in PIPELINE_KEYS) + str(k): v for k, v in new.annotations.items()}
        return ir.with_body(new, new.body, annotations=notes)

    def back(loop: ir.For, mutator: Any) -> ir.For:
        new = mutator.default_mutate(loop)
        if not any(str(k).startswith(_ASIDE) for k in new.annotations):
            return new
        notes = {str(k).removeprefix(_ASIDE): v for k, v in new.annotations.items()}
        return ir.with_body(new, _joined(new.body), annotations=_counted(new.body, notes))

    func = func.with_body(ir.mutate(func.body, [(ir.For, aside)]))
    mod = s_tir.transform.InjectSoftwarePipeline()(IRModule({"main": func}))
    func = tirx.transform.StmtSimplify()(mod)["main"]  # each iteration asks whether it is one
    return func.with_body(ir.mutate(func.body, [(ir.For, back)]))


def _counted(body: ir.Stmt, notes: dict[str, Any]) -> dict[str, Any]:
    """Let what the outer loop says of an inner one as a whole hold for each of its parts."""
    own = body.block.body if isinstance(body, ir.SBlockRealize) else body
    pieces = [
        len(ir.statements(x.block.body)) if _is_expanded(x) else 1 for x in ir.statements(own)
    ]
    stages = [int(x) for x in notes[STAGE]]
    order = [int(x) for x in notes.get(ORDER, range(len(stages)))]
    if not len(stages) == len(order) == len(pieces) < sum(pieces):
        return notes
    turns = sorted((order[n], n, part) for n, count in enumerate(pieces) for part in range(count))
    places = {(n, part): turn for turn, (_, n, part) in enumerate(turns)}
    return {
        **notes,
        STAGE: [stage for stage, count in zip(stages, pieces, strict=True) for _ in range(count)],
        ORDER: [places[x] for x in sorted(places)],
    }


def _joined(body: ir.Stmt) -> ir.Stmt:
    """Put the parts of expanded loops among the statements of an iteration, with what they use."""
    own = body.block if isinstance(body, ir.SBlockRealize) else None
    buffers: list[ir.Var] = []
    parts: list[ir.Stmt] = []
    for part in ir.statements(body if own is None else own.body):
        if _is_expanded(part):
            buffers += part.block.alloc_buffers
            parts += ir.statements(part.block.body)
        else:
            parts.append(part)
    if own is None:
        if not buffers:
            return ir.seq(parts)
        return ir.opaque_block("iteration", ir.seq(parts), alloc_buffers=buffers)
    buffers = [*own.alloc_buffers, *buffers]
    new = ir.with_block(own, body=ir.seq(parts), alloc_buffers=buffers)
    return ir.SBlockRealize(body.iter_values, body.predicate, new)


def _is_expanded(part: ir.Stmt) -> bool:
    return (
        isinstance(part, ir.SBlockRealize)
        and ir.is_const(part.predicate, 1)
        and isinstance(part.block.body, ir.SeqStmt)
        and ASYNC_COPY not in part.block.annotations
    )


ExpandInnerPipelines = planned_pass("ExpandInnerPipelines", plan_inner, rewrite_inner)
