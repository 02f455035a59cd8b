"""Pipelines that are left to TVM's own pass, since threads make their copies.

    for k in serial(8, annotations={"software_pipeline_stage": [1, 3, 3],
                                    "software_pipeline_async_stages": [1]}):
  ->
    for k in serial(8, annotations={"software_pipeline_stage": [0, 2, 2],
                                    "software_pipeline_async_stages": [0]}):

Stages say who runs how far ahead of whom, so that their least may be any; but TVM takes the number
of an asynchronous one for that of a queue, of which CUDA has one, 0. A later stage of copies by
threads is then none.
"""

from __future__ import annotations

from tvm_hopper import ir
from tvm_hopper.requests.keys import ASYNC_COPY, ASYNC_STAGES, STAGE


def with_stages_from_zero(kernel: ir.For) -> ir.For:
    """Count the stages of pipelines without copies by hardware from 0."""

    def count(loop: ir.For) -> ir.For:
        if STAGE not in loop.annotations or ir.find_blocks(loop, ASYNC_COPY):
            return loop
        stages = [int(x) for x in loop.annotations[STAGE]]
        asynchronous = [int(x) for x in loop.annotations.get(ASYNC_STAGES, [])]
        first = min(stages, default=0)
        if not first and asynchronous in ([], [0]):
            return loop
        notes = {**loop.annotations, STAGE: [x - first for x in stages]}
        notes[ASYNC_STAGES] = [0] * (first in asynchronous)
        return ir.with_body(loop, loop.body, annotations=notes)

    return ir.replace(kernel, ir.For, count)
