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
from tvm_hopper.facts.tensor_map import MAX_ELEMENT_STRIDE
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
    found = find_runs(tensor.indices, shape, tensor.strides)
    runs = [y for x in found for y in ([x] if _is_one(copy, x, analyzer) else [(d,) for d in x])]
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


def _is_one(copy: Transfer, run: tuple[int, ...], analyzer: sym.Analyzer) -> bool:
    """Tell whether one loop at most moves along dimensions, in steps that a map has.

    An inner index must not leave its dimension: a bound of it would be lost.
    """
    indices, shape = ([x[d] for d in run] for x in (copy.tensor.indices, copy.tensor.buffer.shape))
    merged = merge(indices, shape)
    loops = [x for x in copy.loops[1:] if not ir.is_const(x.extent, 1)]
    moved = [x for x in loops if ir.depends_on(indices, [x.loop_var])]
    if len(moved) > 1 or any(
        (step_of(merged, x.loop_var) or 0) > MAX_ELEMENT_STRIDE for x in moved
    ):
        return False
    return copy.condition is None or all(
        ir.static_int(extent) is None
        or analyzer.can_prove(tirx.all(index >= 0, index < ir.cast_like(extent, index)))
        for index, extent in zip(indices[1:], shape[1:], strict=True)
    )
