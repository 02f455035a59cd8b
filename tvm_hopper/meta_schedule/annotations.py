"""Store a kernel's configuration as an annotation, so that a trace carries it.

    for bx in thread_binding(64, "blockIdx.x", annotations={
        "tvm_hopper.configuration": "matmul tile=128x256x64"}):

What a configuration was cannot be read off the loops: 64x128 by columns and 128x64 by rows are the
same. The lowering notes the text for `explain` and drops it; code is that of a kernel without.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_tune
from tvm_hopper.requests.keys import CONFIGURATION

from .configurations import Configuration, as_text, from_text

AXIS = "blockIdx.x"


def annotate(sch: s_tir.Schedule, config: Configuration) -> None:
    """Write the configuration of a schedule on its first kernel that has none.

    Parameters
    ----------
    sch : Schedule
        Of a function that `config` has just scheduled; changed in place.
    config : MatmulConfig, RowReductionConfig or PointwiseConfig
        What it was scheduled with.

    Raises
    ------
    TuningError
        There is no kernel without one.
    """
    for block in _blocks(sch, sch.get_sblock("root")):
        for loop in sch.get_loops(block):
            node = sch.get(loop)
            if _is_axis(node) and CONFIGURATION not in node.annotations:
                sch.annotate(loop, CONFIGURATION, as_text(config))
                return
    raise cannot_tune("annotate", "no kernel without a configuration", "a scheduled function")


def configurations_of(thing: Any) -> list[Configuration]:
    """Return the configurations that kernels carry, in the order of the program.

    Parameters
    ----------
    thing : Schedule, IRModule or PrimFunc
        Scheduled, not lowered yet.

    Raises
    ------
    TuningError
        An annotation is no configuration.
    """
    mod = thing.mod if isinstance(thing, s_tir.Schedule) else thing
    functions = mod.functions.values() if isinstance(mod, tvm.IRModule) else [mod]
    configs = []
    for func in functions:
        if isinstance(func, tirx.PrimFunc):
            for loop in ir.find_all(func.body, ir.For):
                if CONFIGURATION in loop.annotations:
                    where = f"loop {loop.loop_var.name}"
                    configs.append(from_text(str(loop.annotations[CONFIGURATION]), where))
    return configs


def _blocks(sch: s_tir.Schedule, scope: Any) -> Iterator[Any]:
    """Yield the blocks of a scope, and those of the branches in it, which have no loops around."""
    for block in sch.get_child_blocks(scope):
        yield block
        if not sch.get_loops(block):
            yield from _blocks(sch, block)


def _is_axis(loop: Any) -> bool:
    binding = loop.thread_binding
    return binding is not None and str(binding.thread_tag) == AXIS
