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

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.access import AffineAccess
from tvm_hopper.analysis.digits import find_runs, merge
from tvm_hopper.transforms.common.transfer import Transfer


def merge_dimensions(copy: Transfer) -> Transfer:
    """Return a copy of a tensor with fewer dimensions, where its indices are digits of one."""
    tensor = copy.tensor
    shape, given = list(tensor.buffer.shape), list(tensor.buffer.ty.strides or ())
    rows = [x for x in copy.loops[1:-1] if not ir.is_const(x.extent, 1)]
    moved = [set(tensor.axes(x)) for x in (rows, copy.loops[-1:])]
    runs = [
        part
        for run in find_runs(tensor.indices, shape, tensor.strides)
        # along one dimension a box has no rows and columns
        for part in ([(d,) for d in run] if all(x & {*run} for x in moved) else [run])
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
