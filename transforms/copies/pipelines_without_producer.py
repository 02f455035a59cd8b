"""Drop the producer of a pipeline on chips without mbarriers: every thread loads and computes.

    for k in serial(8, annotations={"tvm_hopper.consumers": 2, "software_pipeline_stage": [0, 2]}):
  ->
    for k in serial(8, annotations={"software_pipeline_stage": [0, 2]}):

A producer hands over what it loads by mbarriers on which copies complete, which chips before Hopper
have not. One schedule serves both: there the threads of all consumers load, too, and wait for their
own groups.
"""

from __future__ import annotations

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.arch import Arch
from tvm_hopper.requests.fallbacks import Fallback, report
from tvm_hopper.requests.keys import CONSUMERS
from tvm_hopper.transforms.common.copy_nests import counts_threads
from tvm_hopper.transforms.common.explain_notes import FallbackNote, Note


def without_producers(func: tirx.PrimFunc, kernel: ir.For, arch: Arch) -> tuple[ir.For, list[Note]]:
    """Take producers off the plain loops of a kernel where the chip has none; say of which."""
    slow: list[Fallback] = []
    if arch.has_producers or not counts_threads(kernel):
        return kernel, []

    def plain(loop: ir.For) -> ir.For:
        if CONSUMERS not in loop.annotations:
            return loop
        where = f"loop {loop.loop_var.name}, {CONSUMERS}"
        found = f"every thread loads and computes: {arch.name} has no producer"
        need = "a chip where copies complete on mbarriers: sm_90a"
        slow.append(Fallback(where, found, need, f"build for that one, or remove {CONSUMERS}"))
        notes = {k: v for k, v in loop.annotations.items() if k != CONSUMERS}
        return ir.with_body(loop, loop.body, annotations=notes)

    kernel = ir.replace(kernel, ir.For, plain)
    return kernel, [FallbackNote(text) for text in report(func, slow)]
