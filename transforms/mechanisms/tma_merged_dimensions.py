"""Merge dimensions of a tensor that a copy walks through as through one.

    A: (B, S, K)        tile[r, c] = A[(y * 64 + r) // S, (y * 64 + r) % S, c]
  ->
    A: (B * S, K)       tile[r, c] = A[y * 64 + r, c]

Rows of a batch lie one after another in memory, so that a box may begin in one element of the batch
and end in the next one, whatever S is.  The merged tensor says how the memory is walked through and
nothing else: pointers and offsets are those of the tensor that is declared.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import replace

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.access import AffineAccess, step_of
from tvm_hopper.analysis.digits import find_runs, merge
from tvm_hopper.facts import tensor_map as maps
from tvm_hopper.transforms.common.transfer import Transfer


def merge_dimensions(copy: Transfer, around: tuple[ir.For, ...] = ()) -> Transfer:
    """Return a copy of a tensor with fewer dimensions, where its indices are digits of one.

    `around` are the loops of the kernel.
    """
    tensor = copy.tensor
    shape, given = list(tensor.buffer.shape), list(tensor.buffer.ty.strides or ())
    analyzer = sym.Analyzer()
    for loop in (*around, *copy.loops):
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    loops = [x for x in copy.loops[1:] if not ir.is_const(x.extent, 1)]

    def is_inside(d: int) -> bool:
        """Tell that an index never leaves its dimension, so that no bound of it is lost."""
        index, extent = tensor.indices[d], shape[d]
        return (
            copy.condition is None
            or ir.static_int(extent) is None
            or analyzer.can_prove(tirx.all(index >= 0, index < ir.cast_like(extent, index)))
        )

    def is_one(run: tuple[int, ...]) -> bool:
        """Tell whether one loop at most moves along dimensions, in steps that a map has."""
        moved = [x for x in loops if {*tensor.axes([x])} & {*run}]
        merged = merge([tensor.indices[d] for d in run], [shape[d] for d in run])
        steps = [step_of(merged, x.loop_var) or 0 for x in moved]
        return len(moved) < 2 and max(steps, default=0) <= maps.MAX_ELEMENT_STRIDE

    found = find_runs(tensor.indices, shape, tensor.strides)
    runs = [
        part
        for run in found
        for part in ([run] if is_one(run) and all(map(is_inside, run[1:])) else [(d,) for d in run])
    ]
    if len(runs) == len(shape):
        return copy
    merged = tirx.decl_buffer(
        [ir.simplify(functools.reduce(operator.mul, (shape[i] for i in run))) for run in runs],
        ir.dtype_of(tensor.buffer),
        str(tensor.buffer.name),
        strides=[given[run[-1]] for run in runs] if given else None,
        layout=None,
    )
    indices = tuple(
        merge([tensor.indices[i] for i in run], [shape[i] for i in run]) for run in runs
    )
    access = AffineAccess(merged, indices, tensor.loops)
    return replace(copy, src=access) if copy.fills_shared else replace(copy, dst=access)
