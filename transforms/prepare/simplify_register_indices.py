"""Simplify the indices of register arrays by the ranges of their block's variables.

    for r, j in axis: part[r, j // 8, j % 8] = X[..]                      r < 256, j < 784
    for r, j in axis: Y[..] = part[((r % 32 * 16 + j // 49) // 512 + r // 32) % 8 * 32
                                   + (j // 784 + r % 32) % 32, j // 8, j % 8]
  ->
    for r, j in axis: Y[..] = part[r, j // 8, j % 8]

What reads a tensor through two reshapes, as TVM's group norm, has such indices.  Stock
CompactBufferAllocation sees two rows in them, and allocates the rows of all thread blocks to each
thread: 512 KiB of local memory.

Before: blocks have their variables, whose ranges are exact.  After: no index of a register array
has a division or a remainder that these ranges decide.
"""

from __future__ import annotations

from typing import Any

from tvm import ir as tvm_ir, sym, tirx

from tvm_hopper import ir
from tvm_hopper.transforms.kernel_pass import planned_pass

_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)


def plan_indices(func: tirx.PrimFunc) -> dict[Any, Any]:
    """Map each index of a register array that the ranges of variables simplify to the plain one."""
    found: dict[Any, Any] = {}
    for block in ir.find_all(func.body, ir.SBlock):
        if not block.iter_vars or ir.find_all(block.body, ir.SBlock):
            continue
        indices = [x for x in _indices(block) if any(ir.find_all(x, kind) for kind in _DIVISIONS)]
        if not indices:
            continue
        analyzer = sym.Analyzer()
        for axis in block.iter_vars:
            analyzer.bind(axis.var, tvm_ir.Range.from_min_extent(axis.dom.min, axis.dom.extent))
        for index in indices:
            plain = analyzer.simplify(index)
            if _divisions(plain) < _divisions(index):
                found[index] = plain
    return found


def _indices(block: ir.SBlock) -> list[Any]:
    accesses = [
        *((x.source, x.indices) for x in ir.find_all(block.body, ir.TensorLoad)),
        *((x.buffer, x.indices) for x in ir.find_all(block, ir.BufferStore)),
        *((x.source, [r.min for r in x.region]) for x in (*block.reads, *block.writes)),
    ]
    return [x for buffer, indices in accesses if str(buffer.scope()) == "local" for x in indices]


def _divisions(index: Any) -> int:
    return sum(len(ir.find_all(index, kind)) for kind in _DIVISIONS)


def rewrite_indices(func: tirx.PrimFunc, plan: dict[Any, Any]) -> tirx.PrimFunc:
    """Put the plain indices in place."""

    def plain(node: Any, mutator: Any) -> Any:
        return plan[node] if node in plan else mutator.default_mutate(node)

    kinds = {type(x) for x in plan}
    return func.with_body(ir.mutate(func.body, [(kind, plain) for kind in kinds]))


SimplifyRegisterIndices = planned_pass("SimplifyRegisterIndices", plan_indices, rewrite_indices)
