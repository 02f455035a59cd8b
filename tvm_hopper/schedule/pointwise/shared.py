"""Find values that neighbouring elements of a row share.

Y[t, j] = X[t, j] * C[t, j % 128] + ..        the elements of token t share a row of C

A thread whose vectors lie in one row of C, a multiple of its length apart, loads C once for all.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm_hopper import ir
from tvm_hopper.schedule.memory_bound.arrays import Read
from tvm_hopper.schedule.memory_bound.program import Part


def find_span(parts: list[Part], reads: list[Read]) -> int | None:
    """Return how many neighbouring elements share what is read of a tensor; None for no such.

    Parameters
    ----------
    parts : list of Part
        The program, inlined.
    reads : list of Read
        Tensors whose elements are read where they are computed with.
    """
    spans = [
        _span(part, load)
        for part in parts
        for load in part.loads
        if not any(load.source.same_as(x.tensor) for x in reads)
    ]
    return min((x for x in spans if x is not None), default=None)


def find_gathered(parts: list[Part]) -> list[Read]:
    """Return the tensor that a program loads where none is read at the elements it computes."""
    axes = parts[0].spatial
    found = [
        load.source
        for part in parts
        for load in part.loads
        if axes and ir.depends_on(list(load.indices), [part.spatial[-1].var])
    ]
    sizes = [prod(ir.static_int(x) or 1 for x in tensor.shape) for tensor in found]
    return [Read(found[sizes.index(max(sizes))], (), True)] if found else []


def _span(part: Part, load: Any) -> int | None:
    axes, shape = part.spatial, list(load.source.shape)
    together = 0  # leading dimensions that the tensor has in common with the elements
    for index, axis in zip(load.indices, axes, strict=False):
        if not index.same_as(axis.var):
            break
        together += 1
    if not together or together in (len(axes), len(shape)):
        return None
    own = [ir.static_int(x.dom.extent) for x in axes[together:]]
    lengths = [ir.static_int(x) for x in shape[together:]]
    if None in own or None in lengths:
        return None
    elements, length = (prod(x or 0 for x in sizes) for sizes in (own, lengths))
    return elements if length < elements else None
