"""Runs a scheduled module on the CPU: what the schedule says, without what the lowering does to it.

Thread loops become serial loops, annotations are taken away, and TVM's own passes do the rest. A
schedule helper that changes the meaning of a function is found here, apart from any kernel.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import tirx

from tvm_hopper import ir

from .workloads import argument_types, numpy_type


def as_serial(mod: tvm.IRModule) -> tvm.IRModule:
    """Return "main" with serial loops and no annotations."""

    def loop(node: tirx.For) -> tirx.For:
        if node.kind != ir.ForKind.THREAD_BINDING and not node.annotations:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, ir.ForKind.SERIAL, node.body)

    def block(node: ir.SBlock) -> ir.SBlock:
        return ir.with_block(node, annotations={}) if node.annotations else node

    func = ir.replace(ir.replace(mod["main"], tirx.For, loop), ir.SBlock, block)
    return tvm.IRModule({"main": func})


def run_serially(mod: tvm.IRModule, inputs: list[np.ndarray], **extents: int) -> np.ndarray:
    """Run "main" on the CPU; return its last argument, which starts as poison (-1 everywhere)."""
    shape, dtype = argument_types(mod, **extents)[-1]
    output = tvm.runtime.tensor(np.full(shape, -1, numpy_type(dtype)))
    executable = tvm.compile(as_serial(mod), target="llvm")
    executable["main"](*map(tvm.runtime.tensor, inputs), output)
    return output.numpy()
