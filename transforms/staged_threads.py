"""Pipelines that are left to TVM's own pass, since threads make their copies.

    for k in serial(8, annotations={"software_pipeline_stage": [1, 3, 3],
                                    "software_pipeline_async_stages": [1]}):
  ->
    for k in serial(8, annotations={"software_pipeline_stage": [0, 2, 2]}):

Stages say who runs how far ahead of whom, so that their least may be any; TVM counts them from 0.
None of them is asynchronous: what threads load and store is there when they meet. TVM would commit
groups of nothing, and wait for as many of them as a loop of unknown extent has left, which is no
number that an instruction could have.
"""

from __future__ import annotations

from tvm_hopper import ir
from tvm_hopper.requests.keys import ASYNC_COPY, ASYNC_STAGES, STAGE


def with_plain_stages(kernel: ir.For) -> ir.For:
    """Count the stages of pipelines without copies by hardware from 0, none asynchronous."""

    def count(loop: ir.For) -> ir.For:
        if STAGE not in loop.annotations or ir.find_blocks(loop, ASYNC_COPY):
            return loop
        stages = [int(x) for x in loop.annotations[STAGE]]
        first = min(stages, default=0)
        if not first and ASYNC_STAGES not in loop.annotations:
            return loop
        notes = {k: v for k, v in loop.annotations.items() if k != ASYNC_STAGES}
        return ir.with_body(
            loop, loop.body, annotations={**notes, STAGE: [x - first for x in stages]}
        )

    return ir.replace(kernel, ir.For, count)
